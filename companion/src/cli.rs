//! The commands of the `penstock` binary.
//!
//! Exit codes: 0 for success, 1 for a failure at run time, 2 for bad usage or an invalid configuration.

mod help;
#[cfg(test)]
mod tests;

use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use clap_complete::Shell;
use penstock_config::{self as config, Environment};
use penstock_errors::{EXIT_USAGE, Failure};
use penstock_filter_module as filter_module;
use penstock_mock::{demo, mock_server};
use penstock_server::serve;
use penstock_server::serve::envoy_endpoints;
use penstock_tools::{api_key, import, model_cli, replay, simulate, status_cmd, top};
use penstock_up::{self as up, envoy_config, gateway_resources};
use tracing_subscriber::EnvFilter;

/// The filter's modules in this binary.
const fn filter_modules() -> serve::FilterModules {
    serve::FilterModules {
        wasm: || filter_module::Kind::Wasm.bytes().unwrap_or_default(),
        native: || filter_module::Kind::Native.bytes().unwrap_or_default(),
    }
}

/// Admission control and fair queueing for LLM inference, inside Envoy.
#[derive(Debug, Parser)]
#[command(name = "penstock", version, max_term_width = 110)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// Filter for log messages on stderr: `warn`, `debug`, `penstock=debug,h2=info`.
    #[arg(long, global = true, env = "PENSTOCK_LOG", default_value = "info", value_name = "FILTER")]
    log: String,
    /// Format of log messages.
    #[arg(long, global = true, env = "PENSTOCK_LOG_FORMAT", default_value = "text", value_name = "FORMAT")]
    log_format: LogFormat,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum LogFormat {
    Text,
    Json,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the companion, without Envoy.
    Serve(serve::Args),
    /// Run Envoy, the filter and the companion in front of model servers.
    Up(up::Args),
    /// Run a gateway with simulated model servers and the traffic of three tenants.
    Demo(demo::Args),
    /// Check a configuration file.
    Validate(Validate),
    /// Make an API key for a tenant.
    ApiKey(api_key::Args),
    /// Print the Envoy bootstrap of a configuration.
    EnvoyConfig(envoy_config::Args),
    /// Keep the endpoints of an Envoy up to date where the companion runs elsewhere.
    EnvoyEndpoints(envoy_endpoints::Args),
    /// Print the Kubernetes resources that put Penstock into a Gateway.
    GatewayResources(gateway_resources::Args),
    /// Write the filter's WebAssembly module to a file.
    Filter(filter_module::Args),
    /// Print the state of a running gateway: pools, flows, endpoints, models, advice.
    Status(status_cmd::Args),
    /// Show the state of a running gateway as a live table.
    Top(top::Args),
    /// Run the queueing engine over a script of operations.
    Replay(replay::Args),
    /// Use the queueing model: solve it, size servers, learn its parameters, analyze a snapshot.
    Model(model_cli::Args),
    /// Try policies and numbers of servers on a trace or made-up traffic, in virtual time.
    Simulate(simulate::Args),
    /// Run a simulated OpenAI-compatible model server.
    MockServer(mock_server::Args),
    /// Convert another system's queueing policy to a Penstock configuration.
    Import(import::Args),
    /// Print a shell's completion script.
    Completions(Completions),
}

#[derive(Debug, clap::Args)]
struct Completions {
    /// The shell.
    #[arg(value_enum, value_name = "SHELL")]
    shell: Shell,
}

#[derive(Debug, clap::Args)]
struct Validate {
    /// The configuration file.
    #[arg(long, value_name = "FILE", required_unless_present = "schema")]
    config: Option<PathBuf>,
    /// Print the JSON Schema of a configuration instead, for editors.
    #[arg(long, conflicts_with = "config")]
    schema: bool,
}

/// All commands with their help pages.
fn command() -> clap::Command {
    help::add_pages(Cli::command())
}

/// A shell's completion script.
fn completions(shell: Shell) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command(), "penstock", &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

/// Targets whose lines repeat what this binary logs itself, once: `--log kube_client=debug` shows them.
const QUIET: &str = "kube_client=off,kube_runtime=off";

/// Parses the process' arguments and runs the command.
#[must_use]
pub fn main() -> ExitCode {
    let cli = match Cli::from_arg_matches(&command().get_matches()) {
        Ok(cli) => cli,
        Err(error) => error.exit(),
    };
    let filter = match EnvFilter::try_new(format!("{QUIET},{}", cli.log)) {
        Ok(filter) => filter,
        Err(error) => return report(&format!("--log {}: {error}", cli.log), EXIT_USAGE),
    };
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match cli.log_format {
        LogFormat::Text => log.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr())).init(),
        LogFormat::Json => log.json().init(),
    }
    match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime.block_on(run(cli, Environment::new(std::env::vars_os()))),
        Err(error) => report(&format!("can't start the runtime: {error}"), 1),
    }
}

async fn run(cli: Cli, environment: Environment) -> ExitCode {
    match cli.command {
        Command::Serve(args) => {
            // A companion scrapes and probes thousands of servers. If the system refuses, the limit stays.
            let _ = up::raise_open_files();
            ended(serve::run(args, environment, filter_modules()).await)
        }
        Command::Up(args) => run_up(args, cli.log, cli.log_format, environment).await,
        Command::Demo(args) => ended(demo::run(args, environment).await),
        Command::EnvoyConfig(args) => {
            let out = args.out.clone();
            match (envoy_config::render(args, &environment), out) {
                (Ok(bootstrap), None) => print(&bootstrap),
                (Ok(bootstrap), Some(file)) => ended(envoy_config::write(&bootstrap, &file)),
                (Err(error), _) => failed(&error),
            }
        }
        Command::EnvoyEndpoints(args) => ended(envoy_endpoints::run(args, environment).await),
        Command::GatewayResources(args) => printed(gateway_resources::render(&args, &environment)),
        Command::Filter(args) => match args.kind().write_to(&args.out) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => report(&error.to_string(), 1),
        },
        Command::Validate(args) => validate(&args, &environment),
        Command::ApiKey(args) => printed(api_key::run(&args)),
        Command::Status(args) => ended(status_cmd::run(args, &environment).await),
        Command::Top(args) => ended(top::run(args, &environment).await),
        Command::Replay(args) => ended(replay::run(&args, &environment)),
        // It prints its results as they come.
        Command::Model(args) => ended(model_cli::run(&args)),
        Command::Simulate(args) => printed(simulate::run(&args, &environment)),
        Command::MockServer(args) => ended(mock_server::run(args).await),
        Command::Import(args) => printed(import::run(&args)),
        Command::Completions(args) => print(&completions(args.shell)),
    }
}

/// Runs `up`. The companion that it starts gets the same log options.
async fn run_up(args: up::Args, log: String, log_format: LogFormat, environment: Environment) -> ExitCode {
    let format = match log_format {
        LogFormat::Text => "text",
        LogFormat::Json => "json",
    };
    let flags = vec!["--log".into(), log, "--log-format".into(), format.into()];
    let options = up::Options { flags, environment, ..args.into() };
    ended(up::run(options).await)
}

/// Prints a command's result on stdout. A reader that closes the pipe, as `head` does, is no error.
fn print(text: &str) -> ExitCode {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => report(&format!("can't write to stdout: {error}"), 1),
    }
}

/// Checks a configuration file, or prints the JSON Schema.
fn validate(args: &Validate, environment: &Environment) -> ExitCode {
    let Some(file) = &args.config else {
        return print(&format!("{:#}\n", config::schema()));
    };
    match config::Config::read(file, environment).and_then(config::Config::read_secrets) {
        Ok(_) => print(&format!("{}: valid\n", file.display())),
        Err(error) => report(&error.to_string(), EXIT_USAGE),
    }
}

/// Prints a command's result or error.
fn printed(result: Result<String, impl Failure>) -> ExitCode {
    result.map_or_else(|error| failed(&error), |text| print(&text))
}

/// Prints a command's error, if any, and returns the exit code.
fn ended(result: Result<(), impl Failure>) -> ExitCode {
    result.map_or_else(|error| failed(&error), |()| ExitCode::SUCCESS)
}

/// Prints a command's error and returns the exit code. Like a compiler's message, an error about a line of a file starts with the
/// line's place.
fn failed(error: &impl Failure) -> ExitCode {
    if error.has_place() {
        eprintln!("{error}");
        return ExitCode::from(error.exit_code());
    }
    report(&error.to_string(), error.exit_code())
}

/// Prints an error and returns the exit code.
fn report(message: &str, code: u8) -> ExitCode {
    eprintln!("penstock: {message}");
    ExitCode::from(code)
}
