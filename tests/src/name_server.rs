//! A name server on loopback whose answers a test sets. It knows addresses of IPv4, and answers over UDP.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use tokio::net::UdpSocket;

use crate::wait::on_runtime_thread;

/// The sizes of a message's head, and of a question after its name.
const HEAD: usize = 12;
const QUESTION: usize = 4;
/// The type of a record with an address of IPv4.
const TYPE_A: u16 = 1;

/// The answer of the server about a name; about any other name, that it doesn't exist.
#[derive(Clone, Debug)]
pub enum NameAnswer {
    /// These addresses.
    Addresses(Vec<Ipv4Addr>),
    /// The name exists without an address.
    NoData,
    /// The name doesn't exist.
    NoName,
    /// The server has failed.
    ServFail,
}

/// A running name server.
pub struct NameServer {
    address: SocketAddr,
    names: Arc<Mutex<BTreeMap<String, NameAnswer>>>,
    serving: tokio::task::AbortHandle,
}

impl NameServer {
    /// A server that knows no name.
    ///
    /// # Panics
    /// If no port is free.
    pub async fn start() -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").await.expect("a free port");
        let address = socket.local_addr().expect("a bound socket has an address");
        let names = Arc::<Mutex<BTreeMap<String, NameAnswer>>>::default();
        let known = names.clone();
        let serve = async move {
            let mut query = [0; 1_500];
            while let Ok((length, client)) = socket.recv_from(&mut query).await {
                if let Some(answer) = answer(&query[..length], &known) {
                    // The client may have gone.
                    let _gone = socket.send_to(&answer, client).await;
                }
            }
        };
        let serving = on_runtime_thread(async move { tokio::spawn(serve).abort_handle() }).await;
        Self { address, names, serving }
    }

    /// The server's address.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sets the answer about a name, without a dot at its end.
    ///
    /// # Panics
    /// If the server panicked.
    pub fn set(&self, name: &str, answer: NameAnswer) {
        self.names.lock().expect("no holder of the lock panics").insert(name.to_owned(), answer);
    }
}

impl Drop for NameServer {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// The answer to a query with one question; `None`: it is no such query.
fn answer(query: &[u8], names: &Mutex<BTreeMap<String, NameAnswer>>) -> Option<Vec<u8>> {
    let mut labels = Vec::new();
    let mut position = HEAD;
    loop {
        let length = usize::from(*query.get(position)?);
        position += 1;
        if length == 0 {
            break;
        }
        labels.push(String::from_utf8_lossy(query.get(position..position + length)?).to_lowercase());
        position += length;
    }
    let question = query.get(HEAD..position + QUESTION)?;
    let is_for_addresses = query.get(position..position + 2)? == TYPE_A.to_be_bytes();
    let names = names.lock().expect("no holder of the lock panics");
    let known = names.get(&labels.join(".")).cloned().unwrap_or(NameAnswer::NoName);
    let (code, addresses) = match known {
        NameAnswer::Addresses(addresses) if is_for_addresses => (0, addresses),
        NameAnswer::Addresses(_) | NameAnswer::NoData => (0, Vec::new()),
        NameAnswer::ServFail => (2, Vec::new()),
        NameAnswer::NoName => (3, Vec::new()),
    };
    let count = u16::try_from(addresses.len()).ok()?;
    let mut answer = query.get(..2)?.to_vec();
    // A response to a recursive query, with this code; one question, the records, nothing else.
    answer.extend([0x81, 0x80 | code, 0, 1]);
    answer.extend(count.to_be_bytes());
    answer.extend([0; 4]);
    answer.extend(question);
    for address in addresses {
        // The question's name, an address of class IN, for one second.
        answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 1, 0, 4]);
        answer.extend(address.octets());
    }
    Some(answer)
}
