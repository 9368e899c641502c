//! Writes Events to the API server.

use std::collections::BTreeSet;
use std::time::Duration;

use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use penstock_errors::root_cause;

use super::Target;
use super::changes::Notice;
use crate::discovery::{connect, reference};

/// Who reports, in the Event.
const CONTROLLER: &str = "penstock";
/// What was done, which every Event names.
const ACTION: &str = "Report";
/// The longest time for one Event.
const PUBLISH_MAX: Duration = Duration::from_secs(5);

/// The connection to the API server, from the first Event on.
#[derive(Default)]
pub(super) struct Publisher {
    recorder: Option<(Client, Recorder)>,
    /// Pools whose last Event couldn't be written.
    failing: BTreeSet<String>,
}

impl Publisher {
    /// Writes an Event about a pool. The log has one line about failures in a row.
    pub(super) async fn publish(&mut self, pool: &str, target: &Target, notice: &Notice) {
        let result = match tokio::time::timeout(PUBLISH_MAX, self.try_publish(target, notice)).await {
            Ok(result) => result,
            Err(_) => Err(format!("no answer within {PUBLISH_MAX:?}")),
        };
        match result {
            Ok(()) => {
                self.failing.remove(pool);
            }
            Err(why) => {
                // A later attempt connects again.
                self.recorder = None;
                if self.failing.insert(pool.to_owned()) {
                    tracing::warn!(
                        pool,
                        reason = notice.reason,
                        "no Event about InferencePool {}: {why}; the companion's Role needs create and patch of events in \
                         events.k8s.io",
                        target.name
                    );
                }
            }
        }
    }

    async fn try_publish(&mut self, target: &Target, notice: &Notice) -> Result<(), String> {
        let (client, recorder) = match &self.recorder {
            Some(connected) => connected,
            None => {
                let client = connect().await?;
                let reporter =
                    Reporter { controller: CONTROLLER.into(), instance: std::env::var("HOSTNAME").ok() };
                let recorder = Recorder::new(client.clone(), reporter);
                self.recorder.insert((client, recorder))
            }
        };
        let namespace = target.namespace.as_deref();
        let namespace = namespace.unwrap_or_else(|| client.default_namespace());
        let found = reference(client, namespace, &target.name).await;
        let pool = found.map_err(|why| root_cause(&why))?.ok_or("the pool doesn't exist")?;
        let event = Event {
            type_: if notice.is_warning { EventType::Warning } else { EventType::Normal },
            reason: notice.reason.into(),
            note: Some(notice.note.clone()),
            action: ACTION.into(),
            secondary: None,
        };
        let published = recorder.publish(&event, &pool).await;
        published.map_err(|why| root_cause(&why))
    }
}
