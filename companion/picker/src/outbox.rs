//! The answers of one stream, on their way to the gateway.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use futures_util::Stream;
use tokio::sync::{Notify, mpsc};
use tonic::Status;

use crate::generated::ProcessingResponse;
use crate::limits::ANSWERS_UNREAD;

/// How many answers the gateway hasn't read.
#[derive(Debug, Default)]
struct Unread {
    count: AtomicUsize,
    has_fallen: Notify,
}

/// Takes answers. The stream ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Outbox {
    answers: mpsc::UnboundedSender<ProcessingResponse>,
    unread: Arc<Unread>,
}

/// The answers, for the gateway.
#[derive(Debug)]
pub(crate) struct Answers {
    answers: mpsc::UnboundedReceiver<ProcessingResponse>,
    unread: Arc<Unread>,
    /// Dropped with the answers.
    _open: mpsc::Sender<()>,
}

/// Holds a stream's reader back while its gateway doesn't read.
#[derive(Debug)]
pub(crate) struct Pace {
    unread: Arc<Unread>,
    open: mpsc::Receiver<()>,
}

/// An outbox for a new stream.
pub(crate) fn new() -> (Outbox, Answers, Pace) {
    let (to, from) = mpsc::unbounded_channel();
    let (open, closed) = mpsc::channel(1);
    let unread = Arc::new(Unread::default());
    let answers = Answers { answers: from, unread: Arc::clone(&unread), _open: open };
    (Outbox { answers: to, unread: Arc::clone(&unread) }, answers, Pace { unread, open: closed })
}

impl Outbox {
    /// Sends an answer. On a stream that has ended, it is lost.
    pub(crate) fn send(&self, answer: ProcessingResponse) {
        self.unread.count.fetch_add(1, Ordering::Relaxed);
        // The worker learns of the end of the stream by an event.
        let _: Result<(), _> = self.answers.send(answer);
    }
}

impl Stream for Answers {
    type Item = Result<ProcessingResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let answer = self.answers.poll_recv(context);
        if let Poll::Ready(Some(_)) = &answer
            && self.unread.count.fetch_sub(1, Ordering::Relaxed) == ANSWERS_UNREAD
        {
            self.unread.has_fallen.notify_one();
        }
        answer.map(|answer| answer.map(Ok))
    }
}

impl Pace {
    /// Returns when the gateway has read enough. `false`: it reads no more.
    pub(crate) async fn wait(&mut self) -> bool {
        while self.unread.count.load(Ordering::Relaxed) >= ANSWERS_UNREAD {
            tokio::select! {
                () = self.unread.has_fallen.notified() => {}
                _ = self.open.recv() => return false,
            }
        }
        true
    }

    /// Returns when the gateway reads no more.
    pub(crate) async fn closed(&mut self) {
        // Nothing is ever sent.
        let _: Option<()> = self.open.recv().await;
    }
}

#[cfg(test)]
mod tests {
    use futures_util::{FutureExt as _, StreamExt as _};

    use super::*;

    #[tokio::test]
    async fn a_reader_waits_while_answers_are_not_read() {
        let (outbox, mut answers, mut pace) = new();
        for _ in 0..ANSWERS_UNREAD {
            assert_eq!(pace.wait().now_or_never(), Some(true));
            outbox.send(ProcessingResponse::default());
        }
        assert_eq!(pace.wait().now_or_never(), None);
        assert!(answers.next().await.is_some());
        assert_eq!(pace.wait().now_or_never(), Some(true));
        outbox.send(ProcessingResponse::default());
        drop(answers);
        assert!(!pace.wait().await, "the gateway is gone");
        pace.closed().await;
    }
}
