//! The companion as an endpoint picker: opens its ports, carries its sessions to the companion that leads, and says when it can decide.

use std::fmt::Display;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt as _;
use penstock_config::{Config, Picker};
use penstock_control as control;
use penstock_picker::{Availability, Certificate, Door, NewSession, Settings};
use penstock_wire::Policy;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use crate::base::listener::{self, open_tcp};
use crate::base::phase::Phase;
use crate::decisions::driver::{Handle, Leads};
use crate::election::companions::Peers;
use crate::surface::grpc::client::{Client, Session};
use crate::surface::session_frames;

/// The picker's name among the sessions in /status.
const NODE: &str = "picker";
/// Sessions that wait to be opened: each worker has one, and opens it again after a failure.
const SESSIONS: usize = 64;

/// Between two attempts to connect to a leader.
const CONNECT_PAUSE: Duration = Duration::from_millis(100);

/// The ports of a picker.
pub(crate) struct Ports {
    doors: Vec<Door>,
    health: Option<TcpListener>,
    certificate: Option<Certificate>,
}

impl Ports {
    /// Opens the ports of this configuration. `None`: the companion is no endpoint picker.
    ///
    /// # Errors
    /// When an address can't be listened on.
    pub(crate) fn open(
        config: &Config,
        certificate: Option<Certificate>,
    ) -> Result<Option<Self>, listener::Error> {
        let Picker { listen: Some(listen), health, .. } = config.picker else {
            return Ok(None);
        };
        let mut doors = vec![Door { listener: open_tcp(listen, "picker.listen")?, pool: None }];
        for pool in &config.pools {
            if let Some(port) = pool.picker_port {
                let listener = open_tcp(SocketAddr::new(listen.ip(), port), "pools[].picker_port")?;
                doors.push(Door { listener, pool: Some(pool.name.clone()) });
            }
        }
        let health = health.map(|health| open_tcp(health, "picker.health")).transpose()?;
        Ok(Some(Self { doors, health, certificate }))
    }

    /// Serves until `shutdown` returns. The sessions must be carried, on the driver's thread. `leaves`: this companion leaves its requests to
    /// the next leader. `address`: where filters find it, if there are several.
    pub(crate) fn serve(
        self,
        policy: Policy,
        availability: watch::Receiver<Availability>,
        leaves: watch::Receiver<bool>,
        address: Option<String>,
        shutdown: impl Future<Output = ()> + Send + 'static,
    ) -> (impl Future<Output = Result<(), penstock_picker::Error>> + Send, Sessions) {
        let (companion, sessions) = mpsc::channel(SESSIONS);
        let Self { doors, health, certificate } = self;
        let node = NODE.to_owned();
        let settings =
            Settings { policy, node, doors, health, certificate, address, companion, leaves, availability };
        (penstock_picker::serve(settings, shutdown), Sessions(sessions))
    }
}

/// The sessions that the picker's workers open.
pub(crate) struct Sessions(mpsc::Receiver<NewSession>);

impl Sessions {
    /// Carries each to the companion that it is for, until the picker has ended and its last frames are on their way. `peers`: the other
    /// companions, if there are several.
    pub(crate) async fn carry(mut self, driver: Handle, peers: Option<Peers>) {
        let peers = peers.map(Arc::new);
        let mut elsewhere = JoinSet::new();
        let failing = Arc::<Failing>::default();
        loop {
            let opened = tokio::select! {
                opened = self.0.recv() => opened,
                Some(_) = elsewhere.join_next() => continue,
            };
            let Some(session) = opened else { break };
            let leader = session.leader.as_ref().and_then(|leader| leader.parse().ok());
            match (leader, &peers) {
                (Some(leader), Some(peers)) => {
                    elsewhere.spawn(carry_to(peers.clone(), leader, session, failing.clone()));
                }
                // This companion decides, or knows the leader.
                _ => open_here(&driver, session).await,
            }
        }
        elsewhere.join_all().await;
    }
}

/// Carries a session with the leader. After a failure the worker asks for the leader again.
async fn carry_to(peers: Arc<Peers>, leader: SocketAddr, session: NewSession, failing: Arc<Failing>) {
    let NewSession { from_worker, to_worker, .. } = session;
    let opened = tokio::select! {
        opened = open(&peers, leader, from_worker, &failing) => opened,
        // The worker waits no longer.
        () = to_worker.closed() => return,
    };
    let ended = match opened {
        Ok(session) => session.carry(to_worker).await,
        Err(why) => Err(why),
    };
    if let Err(why) = ended {
        failing.note(leader, &why);
    }
}

/// Opens a session with the leader, which may need a moment until it can be reached.
async fn open(
    peers: &Peers,
    leader: SocketAddr,
    from_worker: mpsc::Receiver<Bytes>,
    failing: &Failing,
) -> Result<Session, Status> {
    let client = loop {
        match Client::connect(peers, leader).await {
            Ok(client) => break client,
            Err(why) => failing.note(leader, &why),
        }
        tokio::time::sleep(CONNECT_PAUSE).await;
    };
    let session = client.open(from_worker).await?;
    failing.0.store(false, Ordering::Relaxed);
    Ok(session)
}

/// Whether the last session with a leader has failed, which is told once.
#[derive(Debug, Default)]
struct Failing(AtomicBool);

impl Failing {
    fn note(&self, leader: SocketAddr, why: &dyn Display) {
        if self.0.swap(true, Ordering::Relaxed) {
            tracing::debug!(%leader, %why, "endpoint picker: the companion that leads can't be reached");
        } else {
            tracing::warn!(
                %leader,
                "endpoint picker: requests that came before another companion led wait, because that one can't be reached: {why}"
            );
        }
    }
}

async fn open_here(driver: &Handle, session: NewSession) {
    let incoming = ReceiverStream::new(session.from_worker).map(Ok);
    let (to_worker, closed) = (session.to_worker, std::future::pending());
    let opened = session_frames::open(driver, control::Door::Picker, incoming, to_worker, closed).await;
    // Fails when the driver has ended. Its end of the session is dropped then, which closes it.
    drop(opened);
}

/// Whether gateways should ask this companion: it leads and may grant, it knows the endpoints of all pools, and it isn't ending.
pub(crate) fn availability(
    mut leads: watch::Receiver<Leads>,
    mut complete: watch::Receiver<bool>,
    mut phase: watch::Receiver<Phase>,
) -> watch::Receiver<Availability> {
    let (sender, receiver) = watch::channel(Availability::Unready);
    tokio::spawn(async move {
        loop {
            let knows_endpoints = *complete.borrow_and_update();
            let availability = match (*phase.borrow_and_update(), *leads.borrow_and_update()) {
                (Phase::Leaving | Phase::Ending, _) | (_, Leads::Elsewhere) => Availability::Standby,
                (Phase::Serving, Leads::Here) if knows_endpoints => Availability::Ready,
                (Phase::Serving | Phase::Draining, Leads::Here | Leads::Lapsed) => Availability::Unready,
            };
            sender.send_if_modified(|before| core::mem::replace(before, availability) != availability);
            let changed = tokio::select! {
                changed = leads.changed() => changed,
                changed = complete.changed() => changed,
                changed = phase.changed() => changed,
                () = sender.closed() => return,
            };
            // A sender that is gone belongs to a companion that has ended.
            if changed.is_err() {
                sender.send_replace(Availability::Standby);
                return;
            }
        }
    });
    receiver
}
