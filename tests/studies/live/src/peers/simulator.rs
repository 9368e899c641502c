//! llm-d's model server without a model.

use std::net::SocketAddr;
use std::path::Path;

use tokio::process::Command;

use penstock_tests::pages::Pages;
use penstock_tests::ports::free_address;
use penstock_tests::{Process, until};

/// A running simulator. It answers chats for one model without delay.
pub struct Simulator {
    /// The simulator's process.
    pub process: Process,
    /// The address at which it listens.
    pub address: SocketAddr,
}

impl Simulator {
    /// Starts the program with this model. `prepare` changes the command, for example its cores.
    ///
    /// # Panics
    /// With its log, if it does not serve in time.
    pub async fn start(program: &Path, model: &str, prepare: impl FnOnce(&mut Command)) -> Self {
        let address = free_address();
        let mut command = Command::new(program);
        command.args(arguments(address.port(), model));
        prepare(&mut command);
        let process = Process::start("simulator", command).await;
        let pages = Pages::at(format!("http://{address}"));
        until("the simulator serves", || async {
            match pages.get("/v1/models").await {
                Ok(answer) if answer.status == 200 => Ok(()),
                Ok(answer) => Err(format!("{}\n{}", answer.text(), process.tail())),
                Err(error) => Err(format!("{error}\n{}", process.tail())),
            }
        })
        .await;
        Self { process, address }
    }
}

/// The command line: places, queue and context for every request of the benchmark, so that the simulator refuses none. A place costs
/// CPU time, so there are not many more than the connections of a load.
fn arguments(port: u16, model: &str) -> Vec<String> {
    vec![
        format!("--port={port}"),
        format!("--model={model}"),
        "--max-num-seqs=64".to_owned(),
        "--max-waiting-queue-length=1024".to_owned(),
        "--max-model-len=1000000".to_owned(),
        "--mode=random".to_owned(),
        "--v=0".to_owned(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_names_port_and_model() {
        let arguments = arguments(8000, "m");
        for wanted in ["--port=8000", "--model=m"] {
            assert!(arguments.iter().any(|argument| argument == wanted), "{wanted}");
        }
    }
}
