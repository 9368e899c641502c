//! Free ports in place of those of the page, because other gateways may run on this machine.

use tokio::net::TcpSocket;

/// Each port of the page, and the configuration key by which it moves; an empty key: the page's commands name the port.
const PORTS: [(&str, &str); 6] = [
    ("8001", ""),
    ("9095", ""),
    ("8080", "PENSTOCK_LISTEN__GATEWAY"),
    ("9191", "PENSTOCK_LISTEN__HTTP"),
    ("9190", "PENSTOCK_LISTEN__GRPC"),
    ("9901", "PENSTOCK_LISTEN__ENVOY_ADMIN"),
];
/// Commands that use a port without naming it, and what runs in their place.
const COMMANDS: [(&str, &str); 1] = [("penstock status", "penstock status --url http://127.0.0.1:9191")];

/// A free port for each of the page's. Each is reserved by a socket that doesn't listen, beside which a server still can.
pub(crate) struct Ports(Vec<TcpSocket>);

impl Ports {
    /// Reserves them. Needs a runtime.
    pub(crate) fn reserve() -> Self {
        let reserved = PORTS.map(|_| {
            let socket = TcpSocket::new_v4().expect("a socket");
            socket.set_reuseaddr(true).expect("an option of a socket");
            socket.bind(([127, 0, 0, 1], 0).into()).expect("a free port");
            socket
        });
        Self(reserved.into())
    }

    /// The text with the reserved ports.
    pub(crate) fn translate(&self, text: &str) -> String {
        let text = COMMANDS.iter().fold(text.to_owned(), |text, (shown, run)| text.replace(shown, run));
        let mut translated = String::new();
        let mut rest = text.as_str();
        while let Some(begin) = rest.find(|letter: char| letter.is_ascii_digit()) {
            let (before, number) = rest.split_at(begin);
            let end = number.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(number.len());
            let (number, after) = number.split_at(end);
            translated.push_str(before);
            translated.push_str(&self.reserved(number).unwrap_or_else(|| number.to_owned()));
            rest = after;
        }
        translated + rest
    }

    /// Environment variables that move the addresses that the page takes from the defaults.
    pub(crate) fn variables(&self) -> impl Iterator<Item = (&'static str, String)> {
        let moved = PORTS.iter().filter(|(_, key)| !key.is_empty());
        moved.filter_map(|(port, key)| Some((*key, format!("127.0.0.1:{}", self.reserved(port)?))))
    }

    fn reserved(&self, port: &str) -> Option<String> {
        let index = PORTS.iter().position(|(shown, _)| *shown == port)?;
        let address = self.0[index].local_addr().expect("its own");
        Some(address.port().to_string())
    }
}
