//! The choice of a companion. A route to the companions' cluster stands for the filter's gRPC streams: Envoy chooses the host for
//! both in the same way, by the request's headers.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use penstock_envoy::bootstrap::{COMPANION_CLUSTER, Companions};
use penstock_wire::names::COMPANION_HEADER;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::{TcpListener, UdpSocket};

use crate::{Gateway, free, settings};

/// The first route of the gateway.
const ROUTES: &str = "/static_resources/listeners/0/filter_chains/0/filters/0/typed_config/route_config/virtual_hosts/0/routes";

/// A companion that answers each request with its own address, by HTTP/2 without TLS.
async fn companion(address: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind(address).await.expect("a free port");
    let address = listener.local_addr().expect("bound");
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut connection = h2::server::handshake(socket).await.expect("HTTP/2");
                while let Some(Ok((_, mut respond))) = connection.accept().await {
                    let mut body =
                        respond.send_response(http::Response::new(()), false).expect("an open stream");
                    let text = bytes::Bytes::from(address.to_string());
                    body.send_data(text, true).expect("an open stream");
                }
            });
        }
    });
    address
}

fn any() -> SocketAddr {
    ([127, 0, 0, 1], 0).into()
}

async fn gateway(companions: Companions, change: impl FnOnce(&mut Value)) -> Gateway {
    let dir = TempDir::new().expect("a folder");
    let mut settings = settings(dir.path(), vec![]);
    settings.companions = companions;
    Gateway::launch_changed(dir, settings, |document| {
        let routes = document.pointer_mut(ROUTES).and_then(Value::as_array_mut);
        let route = json!({ "match": { "prefix": "/companion" }, "route": { "cluster": COMPANION_CLUSTER } });
        routes.expect("a list").insert(0, route);
        change(document);
    })
    .await
}

/// The companion to which Envoy sends a request that names `name`; an empty text if it is answered 503.
async fn chosen(gateway: &Gateway, name: &str) -> String {
    let headers = match name {
        "" => vec![],
        name => vec![format!("{COMPANION_HEADER}: {name}")],
    };
    let (status, answer) = gateway.get("/companion", &headers).await;
    match status.as_str() {
        "200" => {
            let body = answer.split("\r\n\r\n").nth(1).expect("a body");
            // The body is chunked.
            let line = body.lines().find(|line| line.contains(':'));
            line.expect("an address").to_owned()
        }
        "503" => String::new(),
        _ => panic!("{answer}"),
    }
}

#[tokio::test]
async fn filter_chooses_a_companion_by_a_header() {
    let companions = [companion(any()).await, companion(any()).await, free()];
    let [first, second, down] = companions;
    let gateway = gateway(Companions::List(companions.to_vec()), |_| {}).await;
    for _ in 0..3 {
        for running in [first, second] {
            assert_eq!(chosen(&gateway, &running.to_string()).await, running.to_string());
        }
        assert_eq!(chosen(&gateway, &down.to_string()).await, "", "no other companion takes the stream");
    }
}

#[tokio::test]
async fn stream_that_names_no_host_of_the_cluster_goes_to_any_companion() {
    let companions = [companion(any()).await, companion(any()).await];
    let gateway = gateway(Companions::List(companions.to_vec()), |_| {}).await;
    let all: BTreeSet<String> = companions.iter().map(SocketAddr::to_string).collect();
    for name in ["", "127.0.0.1:1", "nonsense"] {
        // Round robin: two requests reach two companions.
        let mut seen = BTreeSet::new();
        for _ in 0..2 {
            seen.insert(chosen(&gateway, name).await);
        }
        assert_eq!(seen, all, "{name:?}");
    }
}

#[tokio::test]
async fn addresses_of_a_dns_name_become_companions_while_envoy_runs() {
    let first = companion(any()).await;
    let port = first.port();
    let second = companion(SocketAddr::from(([127, 0, 0, 2], port))).await;
    let names = Names::serve(vec![[127, 0, 0, 1]]).await;
    let resolver = names.resolver();
    let companions = Companions::Dns { name: "companions.test".into(), port };
    let gateway = gateway(companions, |document| {
        let cluster = document.pointer_mut("/static_resources/clusters/0/cluster_type/typed_config");
        cluster.expect("the companions' cluster")["typed_dns_resolver_config"] = resolver;
    })
    .await;
    assert_eq!(chosen(&gateway, &first.to_string()).await, first.to_string());
    assert_eq!(
        chosen(&gateway, &second.to_string()).await,
        first.to_string(),
        "not an address of the name yet"
    );
    names.set(vec![[127, 0, 0, 1], [127, 0, 0, 2]]);
    let found = async {
        while chosen(&gateway, &second.to_string()).await != second.to_string() {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    };
    let waited = tokio::time::timeout(std::time::Duration::from_secs(20), found).await;
    assert!(waited.is_ok(), "Envoy never finds {second}");
    assert_eq!(chosen(&gateway, &first.to_string()).await, first.to_string());
}

/// A name server with one name.
struct Names {
    addresses: Arc<Mutex<Vec<[u8; 4]>>>,
    address: SocketAddr,
}

impl Names {
    async fn serve(addresses: Vec<[u8; 4]>) -> Self {
        let socket = UdpSocket::bind(any()).await.expect("a free port");
        let address = socket.local_addr().expect("bound");
        let addresses = Arc::new(Mutex::new(addresses));
        let current = Arc::clone(&addresses);
        tokio::spawn(async move {
            let mut query = [0; 512];
            while let Ok((length, client)) = socket.recv_from(&mut query).await {
                let answer = answer(&query[..length], &current.lock().expect("not poisoned"));
                socket.send_to(&answer, client).await.expect("sent");
            }
        });
        Self { addresses, address }
    }

    fn set(&self, addresses: Vec<[u8; 4]>) {
        *self.addresses.lock().expect("not poisoned") = addresses;
    }

    fn resolver(&self) -> Value {
        let resolver = json!({
            "socket_address": { "address": self.address.ip().to_string(), "port_value": self.address.port(), "protocol": "UDP" },
        });
        json!({
            "name": "envoy.network.dns_resolver.cares",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.network.dns_resolver.cares.v3.CaresDnsResolverConfig",
                "resolvers": [resolver],
                "dns_resolver_options": { "no_default_search_domain": true },
            },
        })
    }
}

/// The answer to a query: these addresses for an hour, or no record if the query is for another type (RFC 1035).
fn answer(query: &[u8], addresses: &[[u8; 4]]) -> Vec<u8> {
    let name_end = 12 + query[12..].iter().position(|&byte| byte == 0).expect("a name");
    let question = &query[12..name_end + 5];
    let is_ipv4 = query[name_end + 1..name_end + 3] == [0, 1];
    let addresses = if is_ipv4 { addresses } else { &[] };
    let count = u8::try_from(addresses.len()).expect("few");
    // The query's number; an answer with authority; one question; the records.
    let mut answer = query[..2].to_vec();
    answer.extend([0x85, 0x80, 0, 1, 0, count, 0, 0, 0, 0]);
    answer.extend(question);
    for address in addresses {
        // The question's name, type A, class IN, 3600 s, four bytes.
        answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0x0e, 0x10, 0, 4]);
        answer.extend(address);
    }
    answer
}
