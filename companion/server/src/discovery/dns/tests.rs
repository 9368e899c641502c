//! Lookups against a name server in this process.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use hickory_resolver::proto::op::{Message, ResponseCode};
use hickory_resolver::proto::rr::rdata::{CNAME, NS};
use hickory_resolver::proto::rr::{Name, RData, Record, RecordType};
use penstock_config::Discovery;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::mpsc;

use super::resolver::look_up;
use super::*;
use crate::base::found::Found;
use crate::discovery::{States, settings, states};

/// The answer of a name server about a name; about any other name, that it doesn't exist.
#[derive(Clone, Debug)]
enum Reply {
    Addresses(Vec<IpAddr>),
    /// These addresses over TCP; over UDP only that the answer is too long.
    Truncated(Vec<IpAddr>),
    /// An alias of a name, which the server answers as well.
    Alias(&'static str),
    NoData,
    NoName,
    /// These addresses for each third query that asks for them; the others learn that the name doesn't exist.
    Lagging(Vec<IpAddr>),
    /// Other name servers know.
    Referral,
    Code(ResponseCode),
    Silent,
}

/// A name server on loopback.
struct NameServer {
    address: SocketAddr,
    zone: Arc<Mutex<BTreeMap<String, Reply>>>,
    asked: Arc<Mutex<Vec<String>>>,
}

impl NameServer {
    async fn start() -> Self {
        let (udp, tcp) = loop {
            let udp = UdpSocket::bind("127.0.0.1:0").await.expect("a port");
            // Another process may have the same port of TCP.
            if let Ok(tcp) = TcpListener::bind(udp.local_addr().expect("bound")).await {
                break (udp, tcp);
            }
        };
        let address = udp.local_addr().expect("bound");
        let server = Self { address, zone: Arc::default(), asked: Arc::default() };
        let (zone, asked) = (server.zone.clone(), server.asked.clone());
        tokio::spawn(async move {
            let mut query = [0; 1_500];
            while let Ok((length, client)) = udp.recv_from(&mut query).await {
                if let Some(answer) = answer(&query[..length], &zone, &asked, false) {
                    let _ = udp.send_to(&answer, client).await;
                }
            }
        });
        let (zone, asked) = (server.zone.clone(), server.asked.clone());
        tokio::spawn(async move {
            while let Ok((client, _)) = tcp.accept().await {
                tokio::spawn(serve(client, zone.clone(), asked.clone()));
            }
        });
        server
    }

    fn set(&self, name: &str, reply: Reply) {
        self.zone.lock().expect("no panic").insert(name.into(), reply);
    }

    fn asked(&self) -> Vec<String> {
        std::mem::take(&mut *self.asked.lock().expect("no panic"))
    }

    fn only(&self) -> NameServers {
        NameServers::Listed(vec![self.address])
    }

    /// The system's configuration with this name server.
    fn system(&self, hosts: &str, rest: &str) -> NameServers {
        NameServers::Files {
            hosts: hosts.into(),
            resolv_conf: format!("nameserver 127.0.0.1\n{rest}\n"),
            port: self.address.port(),
        }
    }
}

async fn serve(
    mut client: TcpStream,
    zone: Arc<Mutex<BTreeMap<String, Reply>>>,
    asked: Arc<Mutex<Vec<String>>>,
) {
    while let Ok(length) = client.read_u16().await {
        let mut query = vec![0; length.into()];
        if client.read_exact(&mut query).await.is_err() {
            return;
        }
        if let Some(answer) = answer(&query, &zone, &asked, true) {
            let length = u16::try_from(answer.len()).expect("short");
            let framed = [&length.to_be_bytes(), &*answer].concat();
            if client.write_all(&framed).await.is_err() {
                return;
            }
        }
    }
}

fn answer(
    query: &[u8],
    zone: &Mutex<BTreeMap<String, Reply>>,
    asked: &Mutex<Vec<String>>,
    is_tcp: bool,
) -> Option<Vec<u8>> {
    let query = Message::from_vec(query).expect("a query");
    let question = query.queries.first().expect("a question").clone();
    let (name, kind) = (question.name().clone(), question.query_type());
    let text = name.to_string().to_lowercase();
    asked.lock().expect("no panic").push(format!("{text} {kind}"));
    let zone = zone.lock().expect("no panic");
    let mut reply = zone.get(&text).cloned().unwrap_or(Reply::NoName);
    let mut message = query.into_response();
    message.metadata.recursion_available = true;
    let mut owner = name.clone();
    while let Reply::Alias(target) = reply {
        let target_name = Name::from_ascii(target).expect("a name");
        message.add_answer(Record::from_rdata(owner, 5, RData::CNAME(CNAME(target_name.clone()))));
        owner = target_name;
        reply = zone.get(target).cloned().unwrap_or(Reply::NoName);
    }
    let asked_before = || asked.lock().expect("no panic").iter().filter(|line| line.ends_with(" A")).count();
    if let Reply::Lagging(addresses) = reply {
        reply = if asked_before() % 3 == 0 { Reply::Addresses(addresses) } else { Reply::NoName };
    }
    match reply {
        Reply::Truncated(_) if !is_tcp => message.metadata.truncation = true,
        Reply::Addresses(addresses) | Reply::Truncated(addresses) => {
            for address in addresses {
                let data = RData::from(address);
                if data.record_type() == kind {
                    message.add_answer(Record::from_rdata(owner.clone(), 5, data));
                }
            }
        }
        Reply::NoName => message.metadata.response_code = ResponseCode::NXDomain,
        Reply::Referral => {
            let other = RData::NS(NS(Name::from_ascii("ns.example.").expect("a name")));
            message.add_authority(Record::from_rdata(
                Name::from_ascii("example.").expect("a name"),
                5,
                other,
            ));
        }
        Reply::Code(code) => message.metadata.response_code = code,
        Reply::Silent => return None,
        Reply::NoData | Reply::Alias(_) | Reply::Lagging(_) => {}
    }
    assert!(kind == RecordType::A || kind == RecordType::AAAA, "only addresses are asked for: {kind}");
    Some(message.to_vec().expect("an answer"))
}

fn ips(texts: &[&str]) -> Vec<IpAddr> {
    texts.iter().map(|text| text.parse().expect("an address")).collect()
}

fn addresses(texts: &[&str]) -> Reply {
    Reply::Addresses(ips(texts))
}

fn is_nothing(answer: &Result<Answer, String>) -> bool {
    matches!(answer, Ok(Answer::Nothing(_)))
}

#[test]
fn addresses_are_sorted_and_ipv4_is_preferred() {
    let resolve = |texts: &[&str]| {
        let found = endpoints(&ips(texts), 1, &EndpointDefaults::default());
        found.iter().map(|endpoint| endpoint.address.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(resolve(&["10.0.0.9", "fd00::1", "10.0.0.10"]), ["10.0.0.9:1", "10.0.0.10:1"]);
    assert_eq!(resolve(&["fd00::2", "fd00::1"]), ["[fd00::1]:1", "[fd00::2]:1"]);
}

#[tokio::test]
async fn an_answer_without_an_address_differs_from_no_answer() {
    let server = NameServer::start().await;
    server.set("four.example.", addresses(&["10.0.0.1", "10.0.0.2", "fd00::1"]));
    server.set("six.example.", addresses(&["fd00::1"]));
    server.set("alias.example.", Reply::Alias("six.example."));
    server.set("dangling.example.", Reply::Alias("gone.example."));
    server.set("empty.example.", Reply::NoData);
    server.set("long.example.", Reply::Truncated(ips(&["10.0.0.3"])));
    let found = async |name: &str| look_up(name, &server.only()).await;
    for (name, expected) in [
        ("four.example", ips(&["10.0.0.1", "10.0.0.2"])),
        ("FOUR.example.", ips(&["10.0.0.1", "10.0.0.2"])),
        ("six.example", ips(&["fd00::1"])),
        ("alias.example", ips(&["fd00::1"])),
        ("long.example", ips(&["10.0.0.3"])),
    ] {
        assert_eq!(found(name).await, Ok(Answer::Addresses(expected)), "{name}");
    }
    for name in ["empty.example", "dangling.example", "gone.example"] {
        let answer = found(name).await;
        assert!(is_nothing(&answer), "{name}: {answer:?}");
    }
    let codes = [ResponseCode::ServFail, ResponseCode::Refused, ResponseCode::NotImp, ResponseCode::FormErr];
    for reply in codes.map(Reply::Code).into_iter().chain([Reply::Referral]) {
        server.set("broken.example.", reply.clone());
        let why = found("broken.example").await.expect_err("no answer");
        let port = server.address.port().to_string();
        assert!(why.starts_with("broken.example can't be resolved: name server 127.0.0.1:"), "{why}");
        assert!(why.contains(&port), "{reply:?}: {why}");
    }
    let closed = UdpSocket::bind("127.0.0.1:0").await.expect("a port").local_addr().expect("bound");
    assert!(
        look_up("a.example", &NameServers::Listed(vec![closed])).await.is_err(),
        "refused by the network"
    );
}

#[tokio::test]
async fn a_silent_name_server_is_a_failure() {
    let server = NameServer::start().await;
    server.set("silent.example.", Reply::Silent);
    let system = server.system("", "options timeout:1 attempts:1");
    let why = look_up("silent.example", &system).await.expect_err("no answer");
    assert!(why.contains("127.0.0.1"), "{why}");
    assert!(
        server.asked().iter().all(|query| query == "silent.example. A"),
        "the first failure ends the search"
    );
}

#[tokio::test]
async fn the_next_name_server_is_asked_when_one_fails() {
    let (broken, good) = (NameServer::start().await, NameServer::start().await);
    broken.set("a.example.", Reply::Code(ResponseCode::ServFail));
    good.set("a.example.", addresses(&["10.0.0.1"]));
    let both = NameServers::Listed(vec![broken.address, good.address]);
    assert_eq!(look_up("a.example", &both).await, Ok(Answer::Addresses(ips(&["10.0.0.1"]))));
    // The first one that answers decides.
    broken.set("a.example.", Reply::NoName);
    assert!(is_nothing(&look_up("a.example", &both).await));
}

#[tokio::test]
async fn names_are_searched_as_the_system_searches_them() {
    let server = NameServer::start().await;
    server.set("vllm.models.svc.cluster.local.", addresses(&["10.0.0.1"]));
    server.set("vllm.models.", addresses(&["203.0.113.1"]));
    let system = server
        .system("10.9.9.9 pinned\n", "search models.svc.cluster.local svc.cluster.local\noptions ndots:5");
    let found = async |name: &str| look_up(name, &system).await;
    let expected = Ok(Answer::Addresses(ips(&["10.0.0.1"])));
    assert_eq!(found("vllm").await, expected);
    assert_eq!(found("vllm.models").await, expected);
    assert_eq!(found("vllm.models.svc.cluster.local").await, expected);
    assert_eq!(found("vllm.models.").await, Ok(Answer::Addresses(ips(&["203.0.113.1"]))), "absolute");
    assert_eq!(found("pinned").await, Ok(Answer::Addresses(ips(&["10.9.9.9"]))));
    server.asked();
    assert_eq!(found("localhost").await, Ok(Answer::Addresses(ips(&["127.0.0.1"]))));
    assert_eq!(server.asked(), [""; 0], "no query for localhost");
    assert!(is_nothing(&found("misspelt").await));
    // Fewer dots than in the name: it is absolute first.
    let few = server.system("", "search models.svc.cluster.local svc.cluster.local\noptions ndots:1");
    assert_eq!(look_up("vllm.models", &few).await, Ok(Answer::Addresses(ips(&["203.0.113.1"]))));
    // A name that exists without an address is not looked for elsewhere.
    server.set("vllm.models.svc.cluster.local.", Reply::NoData);
    server.set("vllm.svc.cluster.local.", addresses(&["10.66.66.66"]));
    assert!(is_nothing(&found("vllm").await));
    // Nor is a failure an answer, though the last name of the search doesn't exist.
    server.set("vllm.models.svc.cluster.local.", Reply::Code(ResponseCode::ServFail));
    server.set("vllm.svc.cluster.local.", Reply::NoName);
    assert!(found("vllm").await.is_err());
    let missing = NameServers::Files { hosts: String::new(), resolv_conf: String::new(), port: 1 };
    assert!(look_up("vllm", &missing).await.expect_err("no name server").contains("/etc/resolv.conf"));
    assert!(look_up("localhost", &missing).await.is_ok());
}

/// Follows `a.example` at this name server.
fn start(server: &NameServer, states: &States) -> mpsc::Receiver<Found> {
    let (sender, found) = mpsc::channel(16);
    let refresh = Duration::from_millis(5);
    let (name, resolver) = ("a.example".to_owned(), vec![server.address]);
    let discovery = Discovery::Dns { name: name.clone(), port: 8000, refresh, resolver: resolver.clone() };
    let report = Report::new("a".into(), settings(discovery), sender, states.clone());
    tokio::spawn(run(report, name, 8000, refresh, resolver));
    found
}

async fn next(found: &mut mpsc::Receiver<Found>) -> Vec<String> {
    let next = tokio::time::timeout(Duration::from_secs(60), found.recv()).await;
    let found = next.expect("in time").expect("discovery runs").discovered.endpoints;
    found.iter().map(|endpoint| endpoint.address.to_string()).collect()
}

/// Waits until the state is up or not, with a reason that has this text.
async fn until_state(states: &States, is_up: bool, reason: &str) {
    let wait = async {
        loop {
            let state = states.get("a").expect("it discovers");
            if state.is_up == is_up && state.reason.contains(reason) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(60), wait).await;
    assert!(waited.is_ok(), "{is_up} {reason}: {:?}", states.get("a"));
}

#[tokio::test]
async fn endpoints_follow_answers_and_outlive_failures() {
    let server = NameServer::start().await;
    server.set("a.example.", Reply::Code(ResponseCode::ServFail));
    let states = states("a");
    let mut found = start(&server, &states);
    until_state(&states, false, "Server Failure").await;
    assert!(found.try_recv().is_err(), "a failure is no list");
    server.set("a.example.", addresses(&["10.0.0.1"]));
    assert_eq!(next(&mut found).await, ["10.0.0.1:8000"]);
    server.set("a.example.", Reply::Code(ResponseCode::Refused));
    until_state(&states, false, "Refused").await;
    server.set("a.example.", addresses(&["10.0.0.2"]));
    assert_eq!(next(&mut found).await, ["10.0.0.2:8000"], "the first list stayed until now");
    for nothing in [Reply::NoName, Reply::NoData] {
        server.set("a.example.", nothing);
        assert_eq!(next(&mut found).await, [""; 0]);
        until_state(&states, true, "a.example.").await;
        server.set("a.example.", addresses(&["10.0.0.3"]));
        assert_eq!(next(&mut found).await, ["10.0.0.3:8000"]);
        assert_eq!(states.get("a").expect("it discovers").reason, "");
    }
}

#[tokio::test]
async fn a_name_that_does_not_exist_at_the_start_is_an_empty_list() {
    let server = NameServer::start().await;
    let states = states("a");
    let mut found = start(&server, &states);
    assert_eq!(next(&mut found).await, [""; 0]);
    until_state(&states, true, "doesn't exist (NXDOMAIN)").await;
}

#[tokio::test]
async fn single_empty_answers_take_no_endpoint_away() {
    let server = NameServer::start().await;
    server.set("a.example.", addresses(&["10.0.0.1"]));
    let mut found = start(&server, &states("a"));
    assert_eq!(next(&mut found).await, ["10.0.0.1:8000"]);
    server.asked();
    server.set("a.example.", Reply::Lagging(ips(&["10.0.0.1"])));
    while server.asked.lock().expect("no panic").len() < 50 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    server.set("a.example.", addresses(&["10.0.0.2"]));
    assert_eq!(next(&mut found).await, ["10.0.0.2:8000"], "no list in between");
}
