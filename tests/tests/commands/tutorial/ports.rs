//! Free ports in place of those of the page, because other gateways may run on this machine.

use std::net::SocketAddr;

use penstock_tests::ports::free_address;

/// Each port of the page, and the configuration key by which it moves; an empty key: the page's commands name the port.
const PORTS: [(&str, &str); 6] = [
    ("8001", ""),
    ("9095", ""),
    ("8080", "PENSTOCK_LISTEN__GATEWAY"),
    ("9191", "PENSTOCK_LISTEN__HTTP"),
    ("9190", "PENSTOCK_LISTEN__GRPC"),
    ("9901", "PENSTOCK_LISTEN__ENVOY_ADMIN"),
];
/// Commands that use a port without naming it, and what runs in their place.
const COMMANDS: [(&str, &str); 1] = [("penstock status", "penstock status --url http://127.0.0.1:9191")];

/// A free port for each of the page's.
pub(crate) struct Ports([SocketAddr; PORTS.len()]);

impl Ports {
    /// Reserves them.
    pub(crate) fn reserve() -> Self {
        Self(PORTS.map(|_| free_address()))
    }

    /// The text with the reserved ports.
    pub(crate) fn translate(&self, text: &str) -> String {
        let text = COMMANDS.iter().fold(text.to_owned(), |text, (shown, run)| text.replace(shown, run));
        let mut translated = String::new();
        let mut rest = text.as_str();
        while let Some(begin) = rest.find(|letter: char| letter.is_ascii_digit()) {
            let (before, number) = rest.split_at(begin);
            let end = number.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(number.len());
            let (number, after) = number.split_at(end);
            translated.push_str(before);
            translated.push_str(&self.reserved(number).unwrap_or_else(|| number.to_owned()));
            rest = after;
        }
        translated + rest
    }

    /// Environment variables that move the addresses that the page takes from the defaults.
    pub(crate) fn variables(&self) -> impl Iterator<Item = (&'static str, String)> {
        let moved = PORTS.iter().filter(|(_, key)| !key.is_empty());
        moved.filter_map(|(port, key)| Some((*key, format!("127.0.0.1:{}", self.reserved(port)?))))
    }

    fn reserved(&self, port: &str) -> Option<String> {
        let index = PORTS.iter().position(|(shown, _)| *shown == port)?;
        Some(self.0[index].port().to_string())
    }
}
