//! Numbers and times as people read them.

use std::time::Duration;

/// `1,234,567`
pub(super) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A number of at least 0: two decimals below 10, one below 100, none above.
pub(super) fn short(number: f64) -> String {
    match number {
        number if !number.is_finite() => "–".into(),
        number if number >= 99.95 => grouped(number.round() as u64),
        number if number >= 9.995 => format!("{number:.1}"),
        number => format!("{number:.2}"),
    }
}

/// Milliseconds; `–` for none.
pub(super) fn ms(value: Option<f64>) -> String {
    value.map_or_else(|| "–".into(), |ms| grouped(ms.round() as u64))
}

/// A part as a percentage. Only a whole is 100 %.
pub(super) fn percent(part: f64) -> String {
    let rounded = (part * 1e3).round() / 10.0;
    let shown = if rounded >= 100.0 && part < 1.0 { 99.9 } else { rounded };
    format!("{shown:.1} %")
}

/// A time in its two largest units.
pub(super) fn time(time: Duration) -> String {
    let secs = time.as_secs();
    match secs {
        0..60 => format!("{:.1} s", time.as_secs_f64()),
        60..3_600 => format!("{} min {} s", secs / 60, secs % 60),
        3_600..86_400 => format!("{} h {} min", secs / 3_600, secs / 60 % 60),
        _ => format!("{} d {} h", secs / 86_400, secs / 3_600 % 24),
    }
}

/// `one noun` or `7 nouns`.
pub(super) fn counted(number: usize, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{} {noun}{plural}", grouped(number as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits_or_are_grouped() {
        let shown = [0.0, 1.234, 9.996, 99.94, 99.96, 1_234.4].map(short);
        assert_eq!(shown, ["0.00", "1.23", "10.0", "99.9", "100", "1,234"]);
        assert_eq!(grouped(1_234_567), "1,234,567");
        assert_eq!((ms(Some(1_500.4)), ms(None)), ("1,500".into(), "–".into()));
        assert_eq!([0.98765, 0.9999, 1.0].map(percent), ["98.8 %", "99.9 %", "100.0 %"]);
    }

    #[test]
    fn times_have_two_units() {
        let shown = [1, 61, 3_601, 90_000].map(|secs| time(Duration::from_secs(secs)));
        assert_eq!(shown, ["1.0 s", "1 min 1 s", "1 h 0 min", "1 d 1 h"]);
        assert_eq!(
            (counted(1, "server"), counted(2_000, "server")),
            ("1 server".into(), "2,000 servers".into())
        );
    }
}
