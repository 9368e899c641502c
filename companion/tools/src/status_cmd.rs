//! `penstock status`: one look at a running gateway.

use crate::top::{self, Error, Source, SourceArgs};

/// One look at a running gateway: pools, flows, endpoints, models, advice.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    source: SourceArgs,
    /// Print the document of /status as it is
    #[arg(long)]
    json: bool,
}

/// Runs the command.
///
/// # Errors
/// When the address is wrong, or nobody answers.
pub async fn run(args: Args) -> Result<(), Error> {
    let source = Source::new(&args.source)?;
    top::once(&source, args.json).await
}
