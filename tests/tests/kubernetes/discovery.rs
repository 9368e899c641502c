//! Discovery of an InferencePool's pods in a real API server of Kubernetes: that of `KUBECONFIG`, a cluster for tests. The companion's
//! account has exactly the permissions that docs/kubernetes.md names.

use std::net::Ipv4Addr;
use std::path::Path;
use std::time::{Duration, Instant};

use penstock_tests::cluster::{Cluster, NAMESPACE, kubectl};
use penstock_tests::ports::free_addresses;
use penstock_tests::relay::Relay;
use penstock_tests::{Companion, Envoy, run, until};
use serde_json::{Value, json};

use crate::objects::{self, unused_name};

/// Pods that appear together.
const PODS: usize = 200;

const PORT: u16 = 8_000;

fn create_pool(name: &str) {
    objects::create_pool(name, PORT);
}

/// Creates pods of the pool that are ready.
fn create_pods(pool: &str, numbers: std::ops::Range<usize>) {
    let address = |number: usize| Ipv4Addr::from_bits(0x0a01_0001 + u32::try_from(number).expect("few"));
    objects::create_pods(pool, &numbers.map(|number| (number, address(number))).collect::<Vec<_>>());
}

async fn companion(kubeconfig: &Path, pool: &str) -> Companion {
    companion_of(kubeconfig, &format!("inference_pool: {pool}, namespace: {NAMESPACE}")).await
}

async fn companion_of(kubeconfig: &Path, object: &str) -> Companion {
    let grpc = free_addresses(1)[0];
    let pools =
        [format!("- name: chat\n  health: {{path: null}}\n  endpoints: {{kubernetes: {{{object}}}}}\n")];
    let kubeconfig = kubeconfig.to_str().expect("a path of text");
    Companion::replica_with(grpc, "", &pools, &[("KUBECONFIG", kubeconfig)]).await
}

async fn pool_status(companion: &Companion) -> Result<Value, String> {
    let status = companion.get("/status").await?.json();
    Ok(status["pools"][0].clone())
}

async fn endpoints(companion: &Companion, count: usize) {
    until(&format!("{count} endpoints"), || async {
        let pool = pool_status(companion).await?;
        let listed = pool["endpoints"].as_array().map_or(0, Vec::len);
        if listed == count { Ok(()) } else { Err(format!("{listed}: {}", pool["discovery"])) }
    })
    .await;
}

/// Waits until discovery works, or fails for a reason with this text.
async fn discovery(companion: &Companion, failure: Option<&str>) {
    until("the state of discovery", || async {
        let state = pool_status(companion).await?["discovery"].clone();
        let is_up = state["up"] == true;
        let reason = state["reason"].as_str().unwrap_or_default();
        if failure.map_or(is_up, |text| !is_up && reason.contains(text)) {
            Ok(())
        } else {
            Err(state.to_string())
        }
    })
    .await;
}

#[test]
fn many_pods_and_a_pool_that_comes_late_are_found_at_once() {
    run(async {
        let cluster = Cluster::prepare("kubernetes.md");
        let name = unused_name();
        let kubeconfig = cluster.kubeconfig("companion", &cluster.server);
        let companion = companion(&kubeconfig, &name).await;
        discovery(&companion, Some("does not exist")).await;
        let ready = companion.get("/readyz").await.expect("an answer");
        assert_eq!(ready.status, 503);
        assert!(ready.text().contains("does not exist"), "{}", ready.text());

        create_pool(&name);
        let created = Instant::now();
        discovery(&companion, None).await;
        println!("figure: a pool that comes late is used after {:?}", created.elapsed());
        // An empty list is an answer.
        let envoy = Envoy::alone(&companion, "one", None, |_| ()).await;
        until("the companion is ready", || async {
            let ready = companion.get("/readyz").await?;
            if ready.status == 200 { Ok(()) } else { Err(ready.text()) }
        })
        .await;

        let started = Instant::now();
        create_pods(&name, 0..PODS);
        let made = Instant::now();
        endpoints(&companion, PODS).await;
        println!(
            "figure: {PODS} pods are made ready in {:?}, and all are endpoints {:?} later",
            made - started,
            made.elapsed()
        );
        objects::delete_pod(&name, 7);
        let gone = Instant::now();
        endpoints(&companion, PODS - 1).await;
        println!("figure: a pod that has gone is no endpoint after {:?}", gone.elapsed());
        drop(envoy);
    });
}

#[test]
fn every_outage_of_the_api_server_shows_and_takes_no_endpoint_away() {
    run(async {
        let cluster = Cluster::prepare("kubernetes.md");
        let name = unused_name();
        create_pool(&name);
        create_pods(&name, 0..3);
        let relay = Relay::to(cluster.address()).await;
        let kubeconfig = cluster.kubeconfig("behind", &format!("https://{}", relay.address()));
        let companion = companion(&kubeconfig, &name).await;
        endpoints(&companion, 3).await;
        for outage in 0..2 {
            relay.close();
            let closed = Instant::now();
            discovery(&companion, Some(&name)).await;
            println!("figure: outage {outage} shows after {:?}", closed.elapsed());
            // Longer than the longest pause between attempts.
            tokio::time::sleep(Duration::from_secs(6)).await;
            endpoints(&companion, 3).await;
            relay.mend();
            let mended = Instant::now();
            discovery(&companion, None).await;
            println!("figure: the end of outage {outage} shows after {:?}", mended.elapsed());
        }
        let log = companion.log();
        let lines = |text: &str| log.lines().filter(|line| line.contains(text)).count();
        assert_eq!(lines("endpoint discovery failed"), 2, "{log}");
        assert_eq!(lines("endpoint discovery works again"), 2, "{log}");
        assert_eq!(lines("ERROR"), 0, "{log}");
    });
}

/// Without a namespace, that of the context counts.
#[test]
fn the_endpoints_of_a_service_follow_its_slices() {
    run(async {
        let cluster = Cluster::prepare("kubernetes.md");
        let name = unused_name();
        let kubeconfig = cluster.kubeconfig("companion", &cluster.server);
        let companion = companion_of(&kubeconfig, &format!("service: {name}, port: http")).await;
        discovery(&companion, Some(&format!("{NAMESPACE}/{name} does not exist"))).await;
        let service = json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {"clusterIP": "None", "ports": [{"name": "http", "port": 80}, {"name": "metrics", "port": 81}]},
        });
        kubectl(&["apply", "-f", "-"], &service.to_string());
        discovery(&companion, None).await;
        // No controller makes slices here.
        let slice = |ready: &[bool]| {
            let endpoints = ready.iter().enumerate().map(|(number, ready)| {
                json!({"addresses": [format!("10.2.0.{}", number + 1)], "conditions": {"ready": ready}})
            });
            let slice = json!({
                "apiVersion": "discovery.k8s.io/v1",
                "kind": "EndpointSlice",
                "metadata": {"name": name, "namespace": NAMESPACE, "labels": {"kubernetes.io/service-name": name}},
                "addressType": "IPv4",
                "ports": [{"name": "http", "port": 8000}, {"name": "metrics", "port": 9090}],
                "endpoints": endpoints.collect::<Vec<_>>(),
            });
            kubectl(&["apply", "-f", "-"], &slice.to_string());
        };
        slice(&[true, true, false]);
        let changed = Instant::now();
        endpoints(&companion, 2).await;
        println!("figure: the endpoints of a slice are used after {:?}", changed.elapsed());
        let pool = pool_status(&companion).await.expect("a page");
        assert_eq!(pool["endpoints"][0]["address"], "10.2.0.1:8000");
        assert_eq!(pool["pending_replicas"], 1);
        slice(&[false, true, true]);
        until("the others", || async {
            let pool = pool_status(&companion).await?;
            let listed = pool["endpoints"].as_array().map_or(0, Vec::len);
            let has_third = pool["endpoints"].to_string().contains("10.2.0.3:8000");
            if listed == 2 && has_third { Ok(()) } else { Err(pool["endpoints"].to_string()) }
        })
        .await;
        kubectl(&["delete", "service", &name, "-n", NAMESPACE], "");
        endpoints(&companion, 0).await;
        discovery(&companion, Some("does not exist")).await;
    });
}

/// A role may name one version of the API only.
#[test]
fn a_misspelt_pool_is_named_where_the_role_has_one_version() {
    run(async {
        let cluster = Cluster::prepare("kubernetes.md");
        kubectl(
            &[
                "patch",
                "role",
                "penstock",
                "-n",
                NAMESPACE,
                "--type",
                "json",
                "-p",
                r#"[{"op": "replace", "path": "/rules/0/apiGroups", "value": ["inference.networking.k8s.io"]}]"#,
            ],
            "",
        );
        let kubeconfig = cluster.kubeconfig("companion", &cluster.server);
        let companion = companion(&kubeconfig, "misspelt").await;
        discovery(&companion, Some("misspelt does not exist")).await;
    });
}

#[test]
fn a_pool_without_a_ready_endpoint_gets_events_as_far_as_the_role_allows() {
    run(async {
        let cluster = Cluster::prepare("kubernetes.md");
        let name = unused_name();
        create_pool(&name);
        let kubeconfig = cluster.kubeconfig("companion", &cluster.server);
        let companion = companion(&kubeconfig, &name).await;
        event(&name, "Warning NoReadyEndpoint").await;
        create_pods(&name, 0..2);
        event(&name, "Normal EndpointsReady").await;

        // The pool is in the documented Role, Events are not.
        let rules = kubectl(&["get", "role", "penstock", "-n", NAMESPACE, "-o", "json"], "");
        let mut role: Value = serde_json::from_str(&rules).expect("JSON");
        let rules = role["rules"].as_array_mut().expect("rules");
        let all = rules.clone();
        rules.retain(|rule| rule["resources"][0] != "events");
        assert_eq!(rules.len() + 1, all.len(), "one rule is about Events");
        kubectl(&["replace", "-f", "-"], &role.to_string());
        let refused = unused_name();
        create_pool(&refused);
        let companion_without = self::companion(&kubeconfig, &refused).await;
        until("the log names the missing permission", || async {
            let log = companion_without.log();
            match log.contains("needs create and patch of events") {
                true => Ok(()),
                false => Err(log),
            }
        })
        .await;
        discovery(&companion_without, None).await;
        drop(companion);
    });
}

/// Waits until the pool has an Event of this type and reason.
async fn event(pool: &str, kind: &str) {
    until(kind, || async {
        let format = "jsonpath={range .items[*]}{.type} {.reason}: {.note}{\"\\n\"}{end}";
        let selector = format!("regarding.name={pool}");
        let events = kubectl(
            &["get", "events.events.k8s.io", "-n", NAMESPACE, "--field-selector", &selector, "-o", format],
            "",
        );
        match events.lines().any(|line| line.starts_with(kind)) {
            true => Ok(()),
            false => Err(events),
        }
    })
    .await;
}
