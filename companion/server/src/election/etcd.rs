//! The leader lease in etcd.
//!
//! `PREFIX/leader` has the leader's identity, and is attached to a lease of etcd: etcd deletes the key when the lease isn't
//! renewed. `PREFIX/record` has the record and stays. Both change in one transaction, and the revision of that transaction is the
//! version of the state. Acquiring needs that the leader's key is absent and the record unchanged; writing and releasing need that the
//! leader's key is still the one that this process made.

mod connection;
#[expect(
    unreachable_pub,
    clippy::enum_variant_names,
    reason = "generated code"
)]
#[rustfmt::skip]
mod generated;

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use penstock_election::{Holder, Record, Request, View};
use tokio::sync::mpsc;
use tokio::time::timeout;

use self::connection::{Connection, Endpoints};
use self::generated::compare::{CompareResult, CompareTarget, TargetUnion};
use self::generated::event::EventType;
use self::generated::request_op::Request as Op;
use self::generated::response_op::Response as OpResponse;
use self::generated::watch_request::RequestUnion;
use self::generated::{
    Compare, DeleteRangeRequest, Event, KeyValue, LeaseGrantRequest, LeaseKeepAliveRequest, PutRequest,
    RangeRequest, RequestOp, TxnRequest, TxnResponse, WatchCreateRequest, WatchRequest,
};
use super::Error;
use super::record::{decode, encode};
use super::store::{LeaseStore, Outcome, StoreError};

/// A lease in etcd.
#[derive(Debug)]
pub(super) struct Etcd {
    endpoints: Endpoints,
    leader_key: Vec<u8>,
    record_key: Vec<u8>,
    identity: String,
    ttl_seconds: i64,
    /// The time that a call of the watch may take. Requests are limited by the caller.
    call_max: Duration,
    /// The connection for requests; `None` while a request uses it, and after a failure.
    connection: Mutex<Option<Connection>>,
    held: Mutex<Option<Held>>,
}

/// The leader's key of this process.
#[derive(Clone, Copy, Debug)]
struct Held {
    lease: i64,
    create_revision: i64,
}

/// The lease's key and the record's at one revision.
#[derive(Debug, Default)]
struct State {
    leader: Option<KeyValue>,
    record: Option<KeyValue>,
    revision: i64,
}

impl Etcd {
    /// A store in the cluster of these members, which needn't be reachable.
    pub(super) fn new(
        endpoints: &[String],
        prefix: &str,
        identity: String,
        duration: Duration,
    ) -> Result<Self, Error> {
        let call_max = duration / 3;
        let prefix = prefix.trim_end_matches('/');
        // etcd counts whole seconds. A longer lease only delays the successor.
        let seconds = duration.as_secs() + u64::from(duration.subsec_nanos() > 0);
        Ok(Self {
            endpoints: Endpoints::new(endpoints, call_max)?,
            leader_key: format!("{prefix}/leader").into_bytes(),
            record_key: format!("{prefix}/record").into_bytes(),
            identity,
            ttl_seconds: i64::try_from(seconds).unwrap_or(i64::MAX).max(1),
            call_max,
            connection: Mutex::default(),
            held: Mutex::default(),
        })
    }

    fn held(&self) -> Option<Held> {
        *self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hold(&self, new: Held) {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        // A watch may show an older key of this process.
        if held.is_none_or(|held| held.create_revision <= new.create_revision) {
            *held = Some(new);
        }
    }

    /// The connection for requests. It goes back to its place after a success: a request that fails or is dropped closes it.
    async fn connected(&self) -> Result<Connection, StoreError> {
        let ready = self.connection.lock().unwrap_or_else(PoisonError::into_inner).take();
        match ready {
            Some(connection) => Ok(connection),
            None => self.endpoints.connect().await,
        }
    }

    fn keep(&self, connection: Connection) {
        *self.connection.lock().unwrap_or_else(PoisonError::into_inner) = Some(connection);
    }

    async fn carry_out(&self, connection: &Connection, request: &Request) -> Result<Outcome, StoreError> {
        match request {
            Request::Acquire { version, record } => self.acquire(connection, *version, record).await,
            Request::Renew { version } => self.renew(connection, *version).await,
            Request::Write { version, record } => self.change(connection, *version, record, false).await,
            Request::Release { version, record } => self.change(connection, *version, record, true).await,
        }
    }

    async fn acquire(
        &self,
        connection: &Connection,
        version: u64,
        record: &Record,
    ) -> Result<Outcome, StoreError> {
        let grant = LeaseGrantRequest { ttl: self.ttl_seconds };
        let granted = connection.lease().lease_grant(Connection::request(grant)).await?.into_inner();
        if !granted.error.is_empty() {
            return Err(StoreError(granted.error));
        }
        let leader = PutRequest {
            key: self.leader_key.clone(),
            value: self.identity.clone().into_bytes(),
            lease: granted.id,
        };
        let compare = vec![created(&self.leader_key, 0), self.unchanged(version)];
        let ops = [Op::RequestPut(leader), self.put_record(record)];
        let answer = txn(connection, compare, ops).await?;
        if !answer.succeeded {
            return Ok(Outcome::Refused);
        }
        let create_revision = revision(&answer);
        self.hold(Held { lease: granted.id, create_revision });
        Ok(done(create_revision))
    }

    async fn renew(&self, connection: &Connection, version: u64) -> Result<Outcome, StoreError> {
        let Some(held) = self.held() else {
            return Ok(Outcome::Refused);
        };
        let keep_alive = LeaseKeepAliveRequest { id: held.lease };
        let requests = Connection::request(stream::once(std::future::ready(keep_alive)));
        let mut answers = connection.lease().lease_keep_alive(requests).await?.into_inner();
        let answer = answers.message().await?;
        let is_alive = answer.is_some_and(|answer| answer.ttl > 0);
        if !is_alive {
            return Ok(Outcome::Refused);
        }
        // The key may have been deleted while its lease lives.
        let compare = vec![created(&self.leader_key, held.create_revision)];
        let answer = txn(connection, compare, []).await?;
        Ok(if answer.succeeded { Outcome::Done { version } } else { Outcome::Refused })
    }

    /// Writes the record, and deletes the leader's key if `releases`. The key's lease then has no key and expires.
    async fn change(
        &self,
        connection: &Connection,
        version: u64,
        record: &Record,
        releases: bool,
    ) -> Result<Outcome, StoreError> {
        let Some(held) = self.held() else {
            return Ok(Outcome::Refused);
        };
        let compare = vec![created(&self.leader_key, held.create_revision), self.unchanged(version)];
        let delete =
            releases.then(|| Op::RequestDeleteRange(DeleteRangeRequest { key: self.leader_key.clone() }));
        let ops = [self.put_record(record)].into_iter().chain(delete);
        let answer = txn(connection, compare, ops).await?;
        Ok(if answer.succeeded { done(revision(&answer)) } else { Outcome::Refused })
    }

    fn put_record(&self, record: &Record) -> Op {
        Op::RequestPut(PutRequest {
            key: self.record_key.clone(),
            value: encode(record).into_bytes(),
            lease: 0,
        })
    }

    /// The record was last written at this version or before, or doesn't exist.
    fn unchanged(&self, version: u64) -> Compare {
        let later = i64::try_from(version).unwrap_or(i64::MAX).saturating_add(1);
        Compare {
            result: CompareResult::Less.into(),
            target: CompareTarget::Mod.into(),
            key: self.record_key.clone(),
            target_union: Some(TargetUnion::ModRevision(later)),
        }
    }

    async fn state(&self, connection: &Connection) -> Result<State, StoreError> {
        let range = |key: &Vec<u8>| Op::RequestRange(RangeRequest { key: key.clone() });
        let ops = [range(&self.leader_key), range(&self.record_key)];
        let answer = txn(connection, Vec::new(), ops).await?;
        let revision = revision(&answer);
        let mut found = answer.responses.into_iter().map(|op| match op.response {
            Some(OpResponse::ResponseRange(range)) => range.kvs.into_iter().next(),
            _ => None,
        });
        Ok(State { leader: found.next().flatten(), record: found.next().flatten(), revision })
    }

    fn apply(&self, state: &mut State, event: Event) {
        let is_put = event.r#type() == EventType::Put;
        let Some(entry) = event.kv else { return };
        state.revision = state.revision.max(entry.mod_revision);
        let place = if entry.key == self.leader_key {
            &mut state.leader
        } else if entry.key == self.record_key {
            &mut state.record
        } else {
            return;
        };
        *place = is_put.then_some(entry);
    }

    fn view(&self, state: &State) -> View {
        let holder = match &state.leader {
            None => Holder::None,
            Some(leader) if leader.value == self.identity.as_bytes() => {
                self.hold(Held { lease: leader.lease, create_revision: leader.create_revision });
                Holder::Me
            }
            Some(_) => Holder::Other,
        };
        let record = state.record.as_ref();
        View {
            holder,
            record: record.and_then(|record| decode(self.endpoints.place(), &record.value)),
            version: u64::try_from(state.revision).unwrap_or(0),
        }
    }

    async fn follow(&self, views: &mpsc::Sender<View>) -> Result<(), StoreError> {
        let late = |_| StoreError("no answer in time".into());
        let connection = timeout(self.call_max, self.endpoints.connect()).await.map_err(late)??;
        let mut state = timeout(self.call_max, self.state(&connection)).await.map_err(late)??;
        let mut range_end = self.record_key.clone();
        range_end.push(0);
        let create = WatchRequest {
            request_union: Some(RequestUnion::CreateRequest(WatchCreateRequest {
                // In order, other keys of the prefix between these two may be seen, and are ignored.
                key: self.leader_key.clone(),
                range_end,
                start_revision: state.revision + 1,
            })),
        };
        // The watch ends with the stream of requests.
        let requests = stream::once(std::future::ready(create)).chain(stream::pending());
        let mut watcher = connection.watch();
        let opened = timeout(self.call_max, watcher.watch(Connection::request(requests))).await;
        let mut changes = opened.map_err(late)??.into_inner();
        loop {
            if views.send(self.view(&state)).await.is_err() {
                return Ok(());
            }
            let revision = state.revision;
            while state.revision == revision {
                let ended = || StoreError("etcd ended the watch".into());
                let change = changes.message().await?.ok_or_else(ended)?;
                if change.canceled {
                    return Err(StoreError(format!("etcd cancelled the watch: {}", change.cancel_reason)));
                }
                for event in change.events {
                    self.apply(&mut state, event);
                }
            }
        }
    }
}

impl LeaseStore for Etcd {
    fn place(&self) -> String {
        format!("etcd {}", self.endpoints.place())
    }

    async fn execute(&self, request: &Request) -> Result<Outcome, StoreError> {
        let connection = self.connected().await?;
        let outcome = self.carry_out(&connection, request).await?;
        self.keep(connection);
        Ok(outcome)
    }

    async fn observe(&self) -> Result<View, StoreError> {
        let connection = self.connected().await?;
        let state = self.state(&connection).await?;
        self.keep(connection);
        Ok(self.view(&state))
    }

    async fn watch(&self, views: &mpsc::Sender<View>) -> StoreError {
        match self.follow(views).await {
            Ok(()) => StoreError("the election has ended".into()),
            Err(why) => why,
        }
    }
}

/// The key was created at this revision; 0: it doesn't exist.
fn created(key: &[u8], revision: i64) -> Compare {
    Compare {
        result: CompareResult::Equal.into(),
        target: CompareTarget::Create.into(),
        key: key.to_owned(),
        target_union: Some(TargetUnion::CreateRevision(revision)),
    }
}

async fn txn(
    connection: &Connection,
    compare: Vec<Compare>,
    ops: impl IntoIterator<Item = Op>,
) -> Result<TxnResponse, StoreError> {
    let ops = ops.into_iter().map(|op| RequestOp { request: Some(op) });
    let request = TxnRequest { compare, success: ops.collect(), failure: Vec::new() };
    Ok(connection.kv().txn(Connection::request(request)).await?.into_inner())
}

fn revision(answer: &TxnResponse) -> i64 {
    answer.header.as_ref().map_or(0, |header| header.revision)
}

fn done(revision: i64) -> Outcome {
    Outcome::Done { version: u64::try_from(revision).unwrap_or(0) }
}
