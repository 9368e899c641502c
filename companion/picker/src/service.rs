//! The gRPC service: passes each stream of a gateway to the worker of its connection.

use std::sync::Arc;

use tokio::sync::{Notify, watch};
use tonic::{Request, Response, Status, Streaming};

use crate::availability::{Availability, STANDS_BY};
use crate::generated::ProcessingRequest;
use crate::generated::external_processor_server::ExternalProcessor;
use crate::outbox::{self, Answers, Pace};
use crate::worker::{Handle, OpenStream};

/// The service of one port, on one worker's thread.
pub(crate) struct Service {
    pub(crate) worker: Handle,
    /// The pool of the port; `None`: the model chooses.
    pub(crate) pool: Option<Arc<str>>,
    pub(crate) availability: watch::Receiver<Availability>,
    /// Told when a stream is refused because this picker is a standby's.
    pub(crate) refused: Arc<Notify>,
}

#[tonic::async_trait]
impl ExternalProcessor for Service {
    type ProcessStream = Answers;

    async fn process(
        &self,
        request: Request<Streaming<ProcessingRequest>>,
    ) -> Result<Response<Answers>, Status> {
        if *self.availability.borrow() == Availability::Standby {
            self.refused.notify_one();
            return Err(Status::unavailable(STANDS_BY));
        }
        let (out, answers, pace) = outbox::new();
        match self.worker.open(out, self.pool.clone()).await {
            Ok(Some(stream)) => {
                tokio::spawn(read_to_end(stream, request.into_inner(), pace));
                Ok(Response::new(answers))
            }
            Ok(None) => Err(Status::resource_exhausted("the endpoint picker has too many requests")),
            Err(_) => Err(Status::unavailable("the endpoint picker is ending")),
        }
    }
}

/// Passes the messages of a stream to its worker, and then its end.
async fn read_to_end(stream: OpenStream, mut messages: Streaming<ProcessingRequest>, mut pace: Pace) {
    while pace.wait().await {
        let message = tokio::select! {
            biased;
            message = messages.message() => message,
            () = pace.closed() => break,
        };
        match message {
            Ok(Some(message)) => {
                if stream.receive(message).await.is_err() {
                    break;
                }
            }
            Ok(None) => break,
            Err(status) => {
                tracing::debug!(%status, "a gateway has cancelled a stream");
                break;
            }
        }
    }
    stream.close().await;
}
