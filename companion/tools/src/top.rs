//! `penstock top`: a live table of pools, flows, endpoints and models, with advice. `penstock status` prints the same
//! tables once.
//!
//! Both commands read /status over HTTP. Without a terminal, `penstock top` works like `penstock status`.

mod screen;
mod source;
mod state;
mod tables;
mod text;
mod view;

use std::io::{self, IsTerminal as _, Write as _};
use std::time::Duration;

use penstock_config::Environment;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior};

pub(crate) use self::source::Source;
pub use self::source::{Args as SourceArgs, Error};
use self::state::{Command, State};
pub(crate) use self::text::render;
pub(crate) use self::view::View;

/// Keys that wait to be processed; more than a person types at once.
const KEYS_MAX: usize = 64;

/// A live table of pools, flows, endpoints and models, with advice.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    source: SourceArgs,
    /// Time between two requests to /status, such as `1s` or `500ms`
    #[arg(long, value_name = "T", default_value = "1s", value_parser = interval)]
    interval: Duration,
    /// Print the /status document once, as JSON
    #[arg(long)]
    json: bool,
}

fn interval(text: &str) -> Result<Duration, String> {
    let time = humantime::parse_duration(text).map_err(|error| format!("{error}; write `1s` or `500ms`"))?;
    if time < Duration::from_millis(100) {
        Err("the interval must be at least 100ms".to_owned())
    } else {
        Ok(time)
    }
}

/// Runs the command.
///
/// # Errors
/// The address is invalid, the companion doesn't answer the first request, or the terminal fails.
pub async fn run(args: Args, environment: &Environment) -> Result<(), Error> {
    let source = Source::new(&args.source, environment)?;
    if args.json || !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        return print_once(&source, args.json).await;
    }
    // The first request comes before the terminal's alternate screen, so that its error stays visible.
    let first = fetch(&source).await?;
    let mut terminal = ratatui::try_init()?;
    let result = run_live(&source, args.interval, first, &mut terminal).await;
    ratatui::restore();
    result
}

/// Requests /status once and prints it, as JSON or as tables.
///
/// # Errors
/// The companion doesn't answer, or the answer is not a /status document.
pub(crate) async fn print_once(source: &Source, json: bool) -> Result<(), Error> {
    let document = source.status().await?;
    let text = if json { format!("{}\n", document.trim_end()) } else { render(&parse(source, &document)?) };
    match io::stdout().write_all(text.as_bytes()) {
        // The reader has closed the pipe, as `head` does.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => Ok(result?),
    }
}

async fn fetch(source: &Source) -> Result<View, Error> {
    parse(source, &source.status().await?)
}

fn parse(source: &Source, document: &str) -> Result<View, Error> {
    View::parse(document).map_err(|error| {
        source.unexpected_answer(&format!("with something other than a /status document: {error}"))
    })
}

async fn run_live(
    source: &Source,
    interval: Duration,
    first: View,
    terminal: &mut ratatui::DefaultTerminal,
) -> Result<(), Error> {
    let started = Instant::now();
    let mut state = State::default();
    state.update(started.elapsed(), first);
    let mut keys = keys();
    let mut terminate = signal(SignalKind::terminate())?;
    let mut ticks = tokio::time::interval_at(started + interval, interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        terminal.draw(|frame| screen::draw(frame, &state))?;
        tokio::select! {
            _ = ticks.tick() => refresh(source, &mut state, started).await,
            _ = terminate.recv() => return Ok(()),
            command = keys.recv() => match command {
                None | Some(Command::Quit) => return Ok(()),
                Some(Command::Refresh) => refresh(source, &mut state, started).await,
                Some(command) => state.apply(command),
            },
        }
    }
}

async fn refresh(source: &Source, state: &mut State, started: Instant) {
    match fetch(source).await {
        Ok(view) => state.update(started.elapsed(), view),
        Err(error) => state.update_failed(error.to_string()),
    }
}

/// Starts a thread that reads the keyboard, because terminals offer only blocking reads. The thread ends with the process.
fn keys() -> mpsc::Receiver<Command> {
    let (sender, keys) = mpsc::channel(KEYS_MAX);
    std::thread::spawn(move || {
        while let Ok(event) = event::read() {
            if let Some(command) = command(&event)
                && sender.blocking_send(command).is_err()
            {
                return;
            }
        }
    });
    keys
}

fn command(event: &Event) -> Option<Command> {
    match event {
        Event::Resize(_, _) => Some(Command::Redraw),
        Event::Key(KeyEvent {
            code, modifiers, kind: KeyEventKind::Press | KeyEventKind::Repeat, ..
        }) => match code {
            KeyCode::Char('c' | 'd') if modifiers.contains(KeyModifiers::CONTROL) => Some(Command::Quit),
            KeyCode::Char('q') | KeyCode::Esc => Some(Command::Quit),
            KeyCode::Down | KeyCode::Right | KeyCode::Tab | KeyCode::Char('j') => Some(Command::NextPool),
            KeyCode::Up | KeyCode::Left | KeyCode::BackTab | KeyCode::Char('k') => {
                Some(Command::PreviousPool)
            }
            KeyCode::PageDown => Some(Command::FlowsDown),
            KeyCode::PageUp => Some(Command::FlowsUp),
            KeyCode::Char('s') => Some(Command::Sort),
            KeyCode::Char('r') => Some(Command::Refresh),
            _ => None,
        },
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_the_effects_that_the_help_names() {
        let pressed = |code, modifiers| command(&Event::Key(KeyEvent::new(code, modifiers)));
        for (code, expected) in [
            (KeyCode::Char('q'), Some(Command::Quit)),
            (KeyCode::Tab, Some(Command::NextPool)),
            (KeyCode::Up, Some(Command::PreviousPool)),
            (KeyCode::PageDown, Some(Command::FlowsDown)),
            (KeyCode::Char('s'), Some(Command::Sort)),
            (KeyCode::Char('x'), None),
        ] {
            assert_eq!(pressed(code, KeyModifiers::NONE), expected, "{code:?}");
        }
        assert_eq!(pressed(KeyCode::Char('c'), KeyModifiers::CONTROL), Some(Command::Quit));
        assert_eq!(pressed(KeyCode::Char('c'), KeyModifiers::NONE), None);
        assert_eq!(command(&Event::Resize(80, 24)), Some(Command::Redraw));
    }

    #[test]
    fn top_and_status_parse_their_flags() {
        fn parsed<A: clap::Args>(arguments: &[&str]) -> A {
            let command = A::augment_args(clap::Command::new("test"));
            command.clone().debug_assert();
            let matches = command.try_get_matches_from([&["test"], arguments].concat());
            A::from_arg_matches(&matches.expect("valid")).expect("valid")
        }
        let top: Args = parsed(&["--url", "unix:/s", "--interval", "250ms"]);
        assert_eq!((top.source.url.as_deref(), top.interval), (Some("unix:/s"), Duration::from_millis(250)));
        let status: crate::status_cmd::Args = parsed(&["--json", "--config", "penstock.yaml"]);
        assert!(format!("{status:?}").contains("penstock.yaml"));
    }

    #[test]
    fn too_short_intervals_are_rejected() {
        assert_eq!(interval("500ms"), Ok(Duration::from_millis(500)));
        assert!(interval("1ms").is_err() && interval("x").is_err());
    }
}
