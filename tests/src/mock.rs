//! `penstock mock-server`: a batching model server with known alpha, beta and gamma.

use std::net::SocketAddr;

use tokio::process::Command;

use crate::binary;
use crate::process::Process;

/// The parameters of a simulated server.
#[derive(Clone, Copy, Debug)]
pub struct Hardware {
    /// Milliseconds of every iteration.
    pub alpha: f64,
    /// Milliseconds per token processed.
    pub beta: f64,
    /// Milliseconds per token in the cache.
    pub gamma: f64,
    /// Relative standard deviation of an iteration's duration.
    pub noise: f64,
}

/// A running mock server.
pub struct Mock {
    /// The mock server's process.
    pub process: Process,
    /// The mock server's parameters.
    pub hardware: Hardware,
    address: SocketAddr,
}

impl Mock {
    /// Starts a mock server on a free port.
    ///
    /// # Panics
    /// With its log, if it does not start.
    pub async fn start(hardware: Hardware, seed: u64) -> Self {
        Self::start_with(hardware, seed, &[]).await
    }

    /// [`Self::start`] with further flags of the command.
    ///
    /// # Panics
    /// With its log, if it does not start.
    pub async fn start_with(hardware: Hardware, seed: u64, flags: &[&str]) -> Self {
        let mut command = Command::new(binary::penstock());
        command.args(["mock-server", "--port", "0"]);
        for (flag, value) in [
            ("--alpha", hardware.alpha),
            ("--beta", hardware.beta),
            ("--gamma", hardware.gamma),
            ("--noise", hardware.noise),
        ] {
            command.arg(flag).arg(value.to_string());
        }
        command.arg("--seed").arg(seed.to_string()).args(flags);
        let mut process = Process::start("mock-server", command).await;
        let address = process.line("mock-server http://").await;
        Self {
            process,
            hardware,
            address: address.trim().parse().unwrap_or_else(|e| panic!("{address}: {e}")),
        }
    }

    /// The mock server's address.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}
