//! The ready endpoints of a Service, as its EndpointSlices list them.
//!
//! The Service is watched as well: a Service that doesn't exist and a Service without endpoints both have no EndpointSlices.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::{Endpoint as SliceEndpoint, EndpointSlice};
use kube::Client;
use kube::api::Api;
use kube::runtime::watcher::{self, Event};
use penstock_config::{Discovered, EndpointDefaults, PendingServers};
use penstock_errors::root_cause;

use super::listing::Listing;
use super::pool::H2C;
use super::{POD, Pauses, Report, is_expired};

/// The label of a slice with the name of its Service.
const SERVICE: &str = "kubernetes.io/service-name";

/// The Service to follow.
#[derive(Clone, Copy, Debug)]
pub(super) struct Target<'a> {
    pub(super) namespace: &'a str,
    pub(super) name: &'a str,
    /// The name of the port; `None`: the Service has one.
    pub(super) port: Option<&'a str>,
}

/// Never returns; waits for one of `pauses` after each failure.
pub(super) async fn follow(report: &mut Report, client: &Client, target: Target<'_>, pauses: &mut Pauses) {
    loop {
        let why = watch(report, client, target, pauses).await;
        let Target { namespace, name, .. } = target;
        report.failed(&format!("Service {namespace}/{name}: {why}"));
        pauses.wait().await;
    }
}

/// Follows the Service and its slices. Returns the reason why a watch ended.
async fn watch(report: &mut Report, client: &Client, target: Target<'_>, pauses: &mut Pauses) -> String {
    let Target { namespace, name, .. } = target;
    let services: Api<Service> = Api::namespaced(client.clone(), namespace);
    let mut service = std::pin::pin!(watcher::watch_object(services, name));
    let of_service = watcher::Config::default().labels(&format!("{SERVICE}={name}"));
    let slices: Api<EndpointSlice> = Api::namespaced(client.clone(), namespace);
    let mut slices = std::pin::pin!(watcher::watcher(slices, of_service));
    let mut exists = false;
    let mut found = Slices::default();
    loop {
        tokio::select! {
            object = service.next() => match object.transpose() {
                Ok(Some(object)) => {
                    exists = object.is_some();
                    if !exists && report.has_endpoints() {
                        // It was deleted.
                        report.send(Discovered::default()).await;
                    }
                    if !exists {
                        report.failed(&format!("Service {namespace}/{name} does not exist"));
                    }
                }
                Err(why) if is_expired(&why) => {}
                Err(why) => return root_cause(&why),
                Ok(None) => return "the watch has ended".into(),
            },
            event = slices.next() => match event.transpose() {
                Ok(Some(event)) => found.handle(event),
                Err(why) if is_expired(&why) => {}
                Err(why) => return format!("its EndpointSlices: {}", root_cause(&why)),
                Ok(None) => return "the watch of its EndpointSlices has ended".into(),
            },
        }
        if exists && found.0.is_complete() {
            pauses.reset();
            match found.discovered(target.port, &report.settings.defaults) {
                Ok(discovered) => report.send(discovered).await,
                Err(why) => report.failed(&format!("Service {namespace}/{name}: {why}")),
            }
        }
    }
}

/// The slices of a Service.
#[derive(Debug, Default)]
struct Slices(Listing<EndpointSlice>);

impl Slices {
    fn handle(&mut self, event: Event<EndpointSlice>) {
        self.0.handle(event, |slice, _| Some(slice));
    }

    /// The endpoints at this port. Those that aren't ready, and won't end, are pending servers. If the Service has IPv4 addresses, its
    /// IPv6 addresses are dropped: a pod with both would be two endpoints.
    fn discovered(&self, port: Option<&str>, defaults: &EndpointDefaults) -> Result<Discovered, String> {
        let mut ready: BTreeMap<SocketAddr, Option<String>> = BTreeMap::new();
        let mut pending = BTreeSet::new();
        for (slice, number) in self.with_port(port)? {
            for endpoint in &slice.endpoints {
                // All addresses of an endpoint are the same server.
                let ip = endpoint.addresses.iter().find_map(|text| text.parse::<IpAddr>().ok());
                let Some(address) = ip.map(|ip| SocketAddr::new(ip, number)) else {
                    continue;
                };
                match state(endpoint) {
                    State::Ready => drop(ready.insert(address, pod(endpoint))),
                    State::Pending => drop(pending.insert(address)),
                    State::Ending => {}
                }
            }
        }
        if ready.keys().any(SocketAddr::is_ipv4) {
            ready.retain(|address, _| address.is_ipv4());
        }
        if pending.iter().any(SocketAddr::is_ipv4) {
            pending.retain(SocketAddr::is_ipv4);
        }
        let endpoints = ready.into_iter().map(|(address, pod)| {
            let mut endpoint = defaults.endpoint(address);
            endpoint.labels.extend(pod.map(|pod| (POD.to_owned(), pod)));
            endpoint
        });
        let servers = u64::try_from(pending.len()).unwrap_or(u64::MAX);
        let pending = (servers > 0).then(|| PendingServers {
            variant: defaults.variant.clone(),
            max_batch: defaults.max_batch,
            servers,
        });
        let slices = self.with_port(port)?;
        let http2 = slices.iter().any(|(slice, number)| {
            slice.ports.iter().flatten().any(|port| {
                port.port == Some(i32::from(*number)) && port.app_protocol.as_deref() == Some(H2C)
            })
        });
        let (endpoints, pending) = (endpoints.collect(), pending.into_iter().collect());
        Ok(Discovered { endpoints, pending, http2, ..Discovered::default() })
    }

    /// The slices that have the port, with its number.
    fn with_port(&self, port: Option<&str>) -> Result<Vec<(&EndpointSlice, u16)>, String> {
        let mut slices = Vec::new();
        let mut others = BTreeSet::new();
        for slice in self.0.objects().values() {
            let ports = slice.ports.as_deref().unwrap_or_default();
            let names = || ports.iter().map(|port| port.name.as_deref().unwrap_or_default());
            if port.is_none() && ports.len() > 1 {
                let names: Vec<&str> = names().collect();
                return Err(format!(
                    "it has the ports {}; name one in endpoints.kubernetes.port",
                    names.join(", ")
                ));
            }
            let position = names().position(|name| port.is_none_or(|port| name == port));
            let number = position.and_then(|position| ports.get(position)?.port);
            match number.and_then(|number| u16::try_from(number).ok()) {
                Some(number) => slices.push((slice, number)),
                None => others.extend(names()),
            }
        }
        match port {
            Some(port) if slices.is_empty() && !others.is_empty() => {
                let names: Vec<&str> = others.into_iter().collect();
                Err(format!("it has no port `{port}`; its ports are {}", names.join(", ")))
            }
            _ => Ok(slices),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Ready,
    Pending,
    Ending,
}

fn state(endpoint: &SliceEndpoint) -> State {
    let conditions = endpoint.conditions.as_ref();
    let is_terminating = conditions.and_then(|conditions| conditions.terminating) == Some(true);
    // Without the condition, an endpoint counts as ready.
    let is_ready = conditions.and_then(|conditions| conditions.ready) != Some(false);
    match (is_terminating, is_ready) {
        (true, _) => State::Ending,
        (false, true) => State::Ready,
        (false, false) => State::Pending,
    }
}

/// The name of the pod behind an endpoint.
fn pod(endpoint: &SliceEndpoint) -> Option<String> {
    let target = endpoint.target_ref.as_ref()?;
    target.name.clone().filter(|_| target.kind.as_deref() == Some("Pod"))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn slice(name: &str, ports: &Value, endpoints: &Value) -> EndpointSlice {
        serde_json::from_value(json!({
            "metadata": {"name": name},
            "addressType": "IPv4",
            "ports": ports,
            "endpoints": endpoints,
        }))
        .expect("a slice")
    }

    fn of(slices: Vec<EndpointSlice>) -> Slices {
        let mut found = Slices::default();
        found.handle(Event::Init);
        assert!(!found.0.is_complete());
        for slice in slices {
            found.handle(Event::InitApply(slice));
        }
        found.handle(Event::InitDone);
        assert!(found.0.is_complete());
        found
    }

    fn addresses(slices: &Slices, port: Option<&str>) -> Result<(Vec<String>, u64), String> {
        let found = slices.discovered(port, &EndpointDefaults::default())?;
        let endpoints = found.endpoints.iter().map(|endpoint| {
            let pod = endpoint.labels.get(POD).cloned().unwrap_or_default();
            format!("{} {pod}", endpoint.address)
        });
        let pending = found.pending.iter().map(|pending| pending.servers).sum();
        Ok((endpoints.collect(), pending))
    }

    #[test]
    fn ready_endpoints_of_the_named_port_count() {
        let ports = json!([{"name": "metrics", "port": 9090}, {"name": "http", "port": 8000}]);
        let endpoint = |ip: &str, conditions: Value| json!({"addresses": [ip], "conditions": conditions, "targetRef": {"kind": "Pod", "name": format!("p{ip}")}});
        let mut slices = of(vec![
            slice(
                "one",
                &ports,
                &json!([
                    endpoint("10.0.0.1", json!({"ready": true})),
                    endpoint("10.0.0.2", json!({"ready": false})),
                    endpoint("10.0.0.3", json!({"ready": false, "serving": true, "terminating": true})),
                ]),
            ),
            slice("two", &ports, &json!([{"addresses": ["10.0.0.4"]}])),
            slice("six", &ports, &json!([endpoint("fd00::1", json!({"ready": true}))])),
        ]);
        let expected = vec!["10.0.0.1:8000 p10.0.0.1".to_owned(), "10.0.0.4:8000 ".to_owned()];
        assert_eq!(addresses(&slices, Some("http")), Ok((expected, 1)));
        let why = addresses(&slices, None).expect_err("two ports");
        assert!(why.contains("metrics, http") && why.contains("endpoints.kubernetes.port"), "{why}");
        let why = addresses(&slices, Some("grpc")).expect_err("no such port");
        assert!(why.contains("`grpc`") && why.contains("http, metrics"), "{why}");
        for name in ["one", "two"] {
            slices.handle(Event::Delete(slice(name, &ports, &json!([]))));
        }
        assert_eq!(addresses(&slices, Some("http")), Ok((vec!["[fd00::1]:8000 pfd00::1".into()], 0)));
    }

    #[test]
    fn a_service_without_endpoints_is_an_empty_list() {
        assert_eq!(addresses(&of(vec![]), Some("http")), Ok((vec![], 0)));
        let unnamed = slice("one", &json!([{"port": 80}]), &json!([{"addresses": ["10.0.0.1"]}]));
        assert_eq!(addresses(&of(vec![unnamed]), None), Ok((vec!["10.0.0.1:80 ".into()], 0)));
    }
}
