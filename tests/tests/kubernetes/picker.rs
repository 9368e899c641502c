//! A gateway asks a companion as an endpoint picker, and everything that it reads of the API server comes, changes and goes while requests wait.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Instant;

use penstock_tests::cluster::{Cluster, NAMESPACE};
use penstock_tests::gateway::{config, slots};
use penstock_tests::picker::Setup;
use penstock_tests::{Answer, ClientRequest, Gateway, PickerGateway, Upstream, process, run, until};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::objects::{apply, create_pods, create_pool, define, delete, delete_pod, unused_name};

/// The API groups of objectives and rewrites.
const GROUPS: [&str; 2] = ["inference.networking.x-k8s.io", "llm-d.ai"];
/// The headers that name an objective.
const HEADERS: [&str; 2] = ["x-gateway-inference-objective", "x-llm-d-inference-objective"];
const FIRST: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 1);
const SECOND: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

/// A gateway that asks a companion as the endpoint picker of one InferencePool, whose servers take one request at a time.
struct Scene {
    gateway: PickerGateway,
    pool: String,
    _cluster: Cluster,
}

impl Scene {
    async fn start() -> Self {
        let cluster = Cluster::prepare("kubernetes.md");
        let pool = unused_name();
        let pools = [configured(&pool)];
        let kubeconfig = cluster.kubeconfig("companion", &cluster.server);
        let kubeconfig = kubeconfig.to_str().expect("a path of text").to_owned();
        let setup = Setup { variables: vec![("KUBECONFIG", kubeconfig)], ..Setup::default() };
        let gateway = PickerGateway::with("identity: {trust: all}\n", &pools, "", &setup).await;
        Self { gateway, pool, _cluster: cluster }
    }

    /// Sends a request in the background, and waits until `waiting` requests wait with it.
    async fn ask(&self, ask: ClientRequest, waiting: u64) -> JoinHandle<Answer> {
        let answer = self.gateway.spawn(ask);
        self.gateway.waiting("chat", waiting).await;
        answer
    }

    /// Waits until the pool shows this value under `key`. Prints how long that took.
    async fn shows(&self, key: &str, expected: Value) {
        let began = Instant::now();
        until(&format!("{key}: {expected}"), || async {
            let seen = self.gateway.pool("chat").await?[key].clone();
            if seen == expected { Ok(()) } else { Err(seen.to_string()) }
        })
        .await;
        println!("figure: {key} {expected} after {:?}", began.elapsed());
    }

    async fn endpoints(&self, expected: &[SocketAddr]) {
        until("the endpoints", || async {
            let pool = self.gateway.pool("chat").await?;
            let seen = pool["endpoints"].as_array().into_iter().flatten();
            // An endpoint that has gone is there until its requests have ended.
            let is_listed = |endpoint: &&Value| !endpoint["why"].to_string().contains("no longer listed");
            let seen = seen.filter(is_listed);
            let seen: Vec<&str> = seen.filter_map(|endpoint| endpoint["address"].as_str()).collect();
            let is_same = expected.iter().map(ToString::to_string).eq(seen.iter().copied());
            if is_same { Ok(()) } else { Err(format!("{seen:?}: {}", pool["discovery"])) }
        })
        .await;
    }

    fn objective(&self, group: &str, name: &str, priority: i32) {
        apply_objective(group, &self.pool, name, priority);
    }

    fn rewrite(&self, group: &str, model: &str, target: &str) {
        apply_rewrite(group, &self.pool, model, target);
    }

    fn named(&self, name: &str) -> String {
        named(&self.pool, name)
    }
}

/// A pool of the configuration that follows this InferencePool and its rules. Its servers take one request at a time.
fn configured(pool: &str) -> String {
    let object = format!("inference_pool: {pool}, namespace: {NAMESPACE}, objectives: true, rewrites: true");
    format!("- name: chat\n  health: {{path: null}}\n{}  endpoints: {{kubernetes: {{{object}}}}}\n", slots(1))
}

/// Objects of other tests have other names.
fn named(pool: &str, name: &str) -> String {
    format!("{pool}-{name}")
}

fn apply_objective(group: &str, pool: &str, name: &str, priority: i32) {
    apply(&json!({
        "apiVersion": format!("{group}/v1alpha2"),
        "kind": "InferenceObjective",
        "metadata": {"name": named(pool, name), "namespace": NAMESPACE},
        "spec": {"priority": priority, "poolRef": {"name": pool}},
    }));
}

fn apply_rewrite(group: &str, pool: &str, model: &str, target: &str) {
    apply(&json!({
        "apiVersion": format!("{group}/v1alpha2"),
        "kind": "InferenceModelRewrite",
        "metadata": {"name": named(pool, model), "namespace": NAMESPACE},
        "spec": {"poolRef": {"name": pool}, "rules": [{
            "matches": [{"model": {"type": "Exact", "value": model}}],
            "targets": [{"modelRewrite": target}],
        }]},
    }));
}

fn chat(text: &str) -> ClientRequest {
    ClientRequest::chat("m", text)
}

async fn served(answer: JoinHandle<Answer>) {
    let answer = answer.await.expect("no panic");
    assert_eq!(answer.status, 200, "{}", answer.text());
}

/// A server at this address of the machine, with the port of all.
async fn server_at(address: Ipv4Addr, port: u16) -> Upstream {
    Upstream::scripted_at(SocketAddr::from((address, port))).await
}

#[test]
fn pool_and_pods_come_and_go_while_requests_wait() {
    run(async {
        let first = Upstream::scripted().await;
        let port = first.address().port();
        let second = server_at(SECOND, port).await;
        let scene = Scene::start().await;

        // Nothing is there but requests.
        let one = scene.ask(chat("one"), 1).await;
        create_pool(&scene.pool, port);
        let two = scene.ask(chat("two"), 2).await;
        create_pods(&scene.pool, &[(0, FIRST)]);
        let running = first.next().await;
        assert_eq!(running.text(), "one");
        scene.gateway.waiting("chat", 1).await;

        // A second pod takes what waits. The first one goes while it answers.
        create_pods(&scene.pool, &[(1, SECOND)]);
        let call = second.next().await;
        assert_eq!(call.text(), "two");
        let three = scene.ask(chat("three"), 1).await;
        delete_pod(&scene.pool, 0);
        scene.endpoints(&[second.address()]).await;
        running.answer();
        served(one).await;
        // Its place is gone with it.
        scene.gateway.waiting("chat", 1).await;
        call.answer();
        served(two).await;
        let call = second.next().await;
        assert_eq!(call.text(), "three");

        // The pool goes while a request runs and another one waits, and comes back.
        let four = scene.ask(chat("four"), 1).await;
        delete("inferencepool.inference.networking.k8s.io", &scene.pool);
        scene.endpoints(&[]).await;
        call.answer();
        served(three).await;
        scene.gateway.waiting("chat", 1).await;
        create_pool(&scene.pool, port);
        let call = second.next().await;
        assert_eq!(call.text(), "four");
        // The pod that answers goes, too, and another one has its address.
        delete_pod(&scene.pool, 1);
        scene.endpoints(&[]).await;
        let five = scene.ask(chat("five"), 1).await;
        create_pods(&scene.pool, &[(2, SECOND)]);
        scene.endpoints(&[second.address()]).await;
        call.answer();
        served(four).await;
        second.next().await.answer();
        served(five).await;
        scene.gateway.stock("chat", 0).await;
        assert_eq!((first.total(), second.total()), (1, 4));
        let metrics = scene.gateway.metrics().await;
        assert_eq!(metrics.sum("penstock_arrivals_total", &[]), 5.0);
    });
}

#[test]
fn objectives_come_change_and_go_while_requests_wait() {
    run(async {
        define("InferenceObjective", "inferenceobjectives");
        let server = Upstream::scripted().await;
        let scene = Scene::start().await;
        create_pool(&scene.pool, server.address().port());
        create_pods(&scene.pool, &[(0, FIRST)]);
        scene.endpoints(&[server.address()]).await;
        for (group, header) in GROUPS.into_iter().flat_map(|group| HEADERS.map(|header| (group, header))) {
            let (urgent, nightly) = (scene.named("urgent"), scene.named("nightly"));
            let named = |objective: &str, text: &str| chat(text).header(header, objective);
            let holder = scene.gateway.spawn(chat("holder"));
            let running = server.next().await;
            // Requests that wait keep what their objective meant when they came: nothing yet.
            let early = scene.ask(named(&urgent, "early"), 1).await;
            scene.objective(group, "urgent", 10);
            scene.objective(group, "nightly", -10);
            scene.shows("objectives", json!({&*urgent: "critical", &*nightly: "sheddable"})).await;
            let mut answers = vec![holder, early];
            answers.push(scene.ask(named(&nightly, "nightly"), 2).await);
            answers.push(scene.ask(chat("plain"), 3).await);
            answers.push(scene.ask(named(&urgent, "urgent"), 4).await);
            scene.objective(group, "urgent", -1);
            scene.shows("objectives", json!({&*urgent: "sheddable", &*nightly: "sheddable"})).await;
            answers.push(scene.ask(named(&urgent, "no longer urgent"), 5).await);
            for name in [&urgent, &nightly] {
                delete(&format!("inferenceobjectives.{group}"), name);
            }
            scene.shows("objectives", json!({})).await;
            answers.push(scene.ask(named(&nightly, "without an objective"), 6).await);

            running.answer();
            let order = ["urgent", "early", "plain", "without an objective", "nightly", "no longer urgent"];
            for expected in order {
                let call = server.next().await;
                assert_eq!(call.text(), expected, "{group} {header}");
                call.answer();
            }
            for answer in answers {
                served(answer).await;
            }
        }
        // Of two objectives with one name, that of the newer group counts.
        scene.objective(GROUPS[0], "both", -1);
        scene.objective(GROUPS[1], "both", 1);
        scene.shows("objectives", json!({scene.named("both"): "critical"})).await;
        delete(&format!("inferenceobjectives.{}", GROUPS[1]), &scene.named("both"));
        scene.shows("objectives", json!({scene.named("both"): "sheddable"})).await;
    });
}

#[test]
fn rewrites_come_change_and_go_while_requests_wait() {
    run(async {
        define("InferenceModelRewrite", "inferencemodelrewrites");
        let server = Upstream::scripted().await;
        let scene = Scene::start().await;
        create_pool(&scene.pool, server.address().port());
        create_pods(&scene.pool, &[(0, FIRST)]);
        scene.endpoints(&[server.address()]).await;
        let ask = || ClientRequest::chat("chat", "hi");
        let to = |target: &str| json!([{"model": "chat", "targets": [{"name": target, "weight": 1.0}]}]);
        for group in GROUPS {
            let mut answers = vec![scene.gateway.spawn(ask())];
            let running = server.next().await;
            answers.push(scene.ask(ask(), 1).await);
            scene.rewrite(group, "chat", "blue");
            scene.shows("rewrites", to("blue")).await;
            answers.push(scene.ask(ask(), 2).await);
            scene.rewrite(group, "chat", "green");
            scene.shows("rewrites", to("green")).await;
            answers.push(scene.ask(ask(), 3).await);
            delete(&format!("inferencemodelrewrites.{group}"), &scene.named("chat"));
            scene.shows("rewrites", json!([])).await;
            answers.push(scene.ask(ask(), 4).await);
            running.answer();
            for expected in ["chat", "blue", "green", "chat"] {
                let call = server.next().await;
                assert_eq!(call.json()["model"], expected, "{group}");
                call.answer();
            }
            for answer in answers {
                served(answer).await;
            }
        }
        scene.gateway.stock("chat", 0).await;
    });
}

/// The filter's door: its requests wait in Envoy while there is no companion, and ask the next one at once.
#[test]
fn a_restarted_companion_decides_by_the_rules() {
    run(async {
        define("InferenceModelRewrite", "inferencemodelrewrites");
        define("InferenceObjective", "inferenceobjectives");
        let server = Upstream::scripted().await;
        let cluster = Cluster::prepare("kubernetes.md");
        let pool = unused_name();
        create_pool(&pool, server.address().port());
        create_pods(&pool, &[(0, FIRST)]);
        apply_rewrite(GROUPS[0], &pool, "chat", "blue");
        apply_objective(GROUPS[0], &pool, "urgent", 10);
        let pools = [configured(&pool)];
        let kubeconfig = cluster.kubeconfig("companion", &cluster.server);
        let kubeconfig = kubeconfig.to_str().expect("a path of text").to_owned();
        let document = config("identity: {trust: all}\n", &pools);
        let gateway = Gateway::with_environment(&document, &[("KUBECONFIG", kubeconfig)]).await;
        for round in 0..2 {
            let companion = gateway.child("serve").await;
            process::send(companion, libc::SIGKILL);
            let plain = ["one", "two"].map(|text| gateway.spawn(ClientRequest::chat("chat", text)));
            let urgent = ClientRequest::chat("chat", "urgent").header(HEADERS[0], &named(&pool, "urgent"));
            let urgent = gateway.spawn(urgent);
            let mut order = Vec::new();
            for _ in 0..3 {
                let call = server.next().await;
                assert_eq!(call.json()["model"], "blue", "round {round}");
                if order.is_empty() {
                    gateway.waiting("chat", 2).await;
                }
                order.push(call.text());
                call.answer();
            }
            let place = order.iter().position(|text| text == "urgent");
            assert!(place < Some(2), "only the first one may be granted before it comes: {order:?}");
            for answer in plain.into_iter().chain([urgent]) {
                served(answer).await;
            }
        }
    });
}
