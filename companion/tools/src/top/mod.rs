//! `penstock top`: a live table of pools, flows, endpoints and models, with advice; and what `penstock status` shares
//! with it.
//!
//! It asks /status as anybody could. Without a terminal it looks once, like `penstock status`.

mod screen;
mod source;
mod state;
mod tables;
mod text;
mod view;

use std::io::{self, IsTerminal as _, Write as _};
use std::time::Duration;

use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior};

pub(crate) use source::Source;
pub use source::{Args as SourceArgs, Error};
use state::{State, Wish};
pub(crate) use text::render;
pub(crate) use view::View;

/// Keys that wait to be acted on; more than anybody types.
const KEYS: usize = 64;

/// A live table of pools, flows, endpoints and models, with advice.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    source: SourceArgs,
    /// Between two looks, `1s` or `500ms`
    #[arg(long, value_name = "T", default_value = "1s", value_parser = interval)]
    interval: Duration,
    /// Print the document of /status once, as it is
    #[arg(long)]
    json: bool,
}

fn interval(text: &str) -> Result<Duration, String> {
    let time = humantime::parse_duration(text).map_err(|e| format!("{e}; write `1s` or `500ms`"))?;
    if time < Duration::from_millis(100) {
        Err("it must be at least 100ms".to_owned())
    } else {
        Ok(time)
    }
}

/// Runs the command.
///
/// # Errors
/// When the address is wrong, nobody answers at first, or the terminal fails.
pub async fn run(args: Args) -> Result<(), Error> {
    let source = Source::new(&args.source)?;
    if args.json || !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        return once(&source, args.json).await;
    }
    // Before the screen is taken: who can't be reached is said where it can be read.
    let first = look(&source).await?;
    let mut terminal = ratatui::try_init()?;
    let ended = live(&source, args.interval, first, &mut terminal).await;
    ratatui::restore();
    ended
}

/// One look, printed: the document as it is, or as tables.
///
/// # Errors
/// When nobody answers, or what isn't a /status.
pub(crate) async fn once(source: &Source, json: bool) -> Result<(), Error> {
    let document = source.status().await?;
    let text = if json {
        format!("{}\n", document.trim_end())
    } else {
        render(
            &View::read(&document).map_err(|why| source.answered(&format!("what isn't a /status: {why}")))?,
        )
    };
    match io::stdout().write_all(text.as_bytes()) {
        // Who reads no further has seen enough.
        Err(why) if why.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => Ok(written?),
    }
}

async fn look(source: &Source) -> Result<View, Error> {
    let document = source.status().await?;
    View::read(&document).map_err(|why| source.answered(&format!("what isn't a /status: {why}")))
}

async fn live(
    source: &Source,
    interval: Duration,
    first: View,
    terminal: &mut ratatui::DefaultTerminal,
) -> Result<(), Error> {
    let started = Instant::now();
    let mut state = State::default();
    state.saw(started.elapsed(), first);
    let mut keys = keys();
    let mut terminate = signal(SignalKind::terminate())?;
    let mut ticks = tokio::time::interval_at(started + interval, interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        terminal.draw(|frame| screen::draw(frame, &state))?;
        tokio::select! {
            _ = ticks.tick() => refresh(source, &mut state, started).await,
            _ = terminate.recv() => return Ok(()),
            wish = keys.recv() => match wish {
                None | Some(Wish::Quit) => return Ok(()),
                Some(Wish::Look) => refresh(source, &mut state, started).await,
                Some(wish) => state.wish(wish),
            },
        }
    }
}

async fn refresh(source: &Source, state: &mut State, started: Instant) {
    match look(source).await {
        Ok(view) => state.saw(started.elapsed(), view),
        Err(why) => state.missed(why.to_string()),
    }
}

/// What is typed, read by a thread of its own: a terminal has no other way. It ends with the program.
fn keys() -> mpsc::Receiver<Wish> {
    let (sender, keys) = mpsc::channel(KEYS);
    std::thread::spawn(move || {
        while let Ok(event) = event::read() {
            if let Some(wish) = wish(&event)
                && sender.blocking_send(wish).is_err()
            {
                return;
            }
        }
    });
    keys
}

fn wish(event: &Event) -> Option<Wish> {
    match event {
        Event::Resize(_, _) => Some(Wish::Redraw),
        Event::Key(KeyEvent {
            code,
            modifiers,
            kind: KeyEventKind::Press | KeyEventKind::Repeat,
            ..
        }) => match code {
            KeyCode::Char('c' | 'd') if modifiers.contains(KeyModifiers::CONTROL) => Some(Wish::Quit),
            KeyCode::Char('q') | KeyCode::Esc => Some(Wish::Quit),
            KeyCode::Down | KeyCode::Right | KeyCode::Tab | KeyCode::Char('j') => Some(Wish::NextPool),
            KeyCode::Up | KeyCode::Left | KeyCode::BackTab | KeyCode::Char('k') => Some(Wish::PreviousPool),
            KeyCode::PageDown => Some(Wish::FlowsDown),
            KeyCode::PageUp => Some(Wish::FlowsUp),
            KeyCode::Char('s') => Some(Wish::Sort),
            KeyCode::Char('r') => Some(Wish::Look),
            _ => None,
        },
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_those_that_the_help_names() {
        let pressed = |code, modifiers| wish(&Event::Key(KeyEvent::new(code, modifiers)));
        for (code, expected) in [
            (KeyCode::Char('q'), Some(Wish::Quit)),
            (KeyCode::Tab, Some(Wish::NextPool)),
            (KeyCode::Up, Some(Wish::PreviousPool)),
            (KeyCode::PageDown, Some(Wish::FlowsDown)),
            (KeyCode::Char('s'), Some(Wish::Sort)),
            (KeyCode::Char('x'), None),
        ] {
            assert_eq!(pressed(code, KeyModifiers::NONE), expected, "{code:?}");
        }
        assert_eq!(
            pressed(KeyCode::Char('c'), KeyModifiers::CONTROL),
            Some(Wish::Quit)
        );
        assert_eq!(pressed(KeyCode::Char('c'), KeyModifiers::NONE), None);
        assert_eq!(wish(&Event::Resize(80, 24)), Some(Wish::Redraw));
    }

    #[test]
    fn both_commands_can_be_told_what_they_say() {
        fn parsed<A: clap::Args>(arguments: &[&str]) -> A {
            let command = A::augment_args(clap::Command::new("it"));
            command.clone().debug_assert();
            let matches = command.try_get_matches_from([&["it"], arguments].concat());
            A::from_arg_matches(&matches.expect("valid")).expect("valid")
        }
        let top: Args = parsed(&["--url", "unix:/s", "--interval", "250ms"]);
        assert_eq!(
            (top.source.url.as_str(), top.interval),
            ("unix:/s", Duration::from_millis(250))
        );
        let status: crate::status_cmd::Args = parsed(&["--json"]);
        assert!(format!("{status:?}").contains("http://127.0.0.1:9191"));
    }

    #[test]
    fn an_interval_is_no_busy_loop() {
        assert_eq!(interval("500ms"), Ok(Duration::from_millis(500)));
        assert!(interval("1ms").is_err() && interval("x").is_err());
    }
}
