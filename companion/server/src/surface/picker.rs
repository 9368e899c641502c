//! The companion as an endpoint picker: opens its ports, carries its sessions to the driver, and says when it can decide.

use std::net::SocketAddr;

use futures_util::StreamExt as _;
use penstock_config::{Config, Picker};
use penstock_control as control;
use penstock_picker::{Availability, Certificate, Door, NewSession, Settings};
use penstock_wire::Policy;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;

use crate::base::listener::{self, open_tcp};
use crate::base::phase::Phase;
use crate::decisions::driver::{Handle, Leads};
use crate::surface::session_frames;

/// The picker's name among the sessions in /status.
const NODE: &str = "picker";
/// Sessions that wait to be opened: each worker has one, and opens it again after a failure.
const SESSIONS: usize = 64;

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

    /// Serves until `shutdown` returns. The sessions with the driver are carried by `sessions`, which belongs on the driver's thread.
    pub(crate) fn serve(
        self,
        policy: Policy,
        availability: watch::Receiver<Availability>,
        shutdown: impl Future<Output = ()> + Send + 'static,
    ) -> (impl Future<Output = Result<(), penstock_picker::Error>> + Send, Sessions) {
        let (companion, sessions) = mpsc::channel(SESSIONS);
        let Self { doors, health, certificate } = self;
        let settings =
            Settings { policy, node: NODE.to_owned(), doors, health, certificate, companion, availability };
        (penstock_picker::serve(settings, shutdown), Sessions(sessions))
    }
}

/// The sessions that the picker's workers open.
pub(crate) struct Sessions(mpsc::Receiver<NewSession>);

impl Sessions {
    /// Opens each with the driver, until the picker or the driver ends.
    pub(crate) async fn open(mut self, driver: Handle) {
        while let Some(NewSession { from_worker, to_worker }) = self.0.recv().await {
            let incoming = ReceiverStream::new(from_worker).map(Ok);
            let opened = session_frames::open(
                &driver,
                control::Door::Picker,
                incoming,
                to_worker,
                std::future::pending(),
            );
            if opened.await.is_err() {
                return;
            }
        }
    }
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
                // Nothing decides any more.
                (Phase::Ending, _) | (_, Leads::Elsewhere) => Availability::Standby,
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
