//! `penstock status`: prints the state of a running gateway.

use penstock_config::Environment;

use crate::top::{self, Error, Source, SourceArgs};

/// Print the state of a running gateway: pools, flows, endpoints, models, advice
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    source: SourceArgs,
    /// Print the /status document as JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
///
/// # Errors
/// The address is invalid, or the companion doesn't answer.
pub async fn run(args: Args, environment: &Environment) -> Result<(), Error> {
    let source = Source::new(&args.source, environment)?;
    top::print_once(&source, args.json).await
}
