//! A gateway that loads no filter: a plain Envoy that asks a companion as an endpoint picker.

use std::net::SocketAddr;
use std::ops::Deref;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::Companion;
use crate::client_request::{Answer, ClientRequest};
use crate::envoy::{launch, listens};
use crate::ports::free_address;
use crate::process::Process;

/// What the gateway sends to the picker, by the names of Envoy's configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Modes {
    /// The mode of request bodies.
    pub request_body: &'static str,
    /// The mode of response bodies; `None`: nothing of responses is sent.
    pub response_body: Option<&'static str>,
    /// Trailers are sent. They are in any case where a body is sent back.
    pub trailers: bool,
}

impl Modes {
    /// What the configurations of llm-d's picker say.
    pub const FULL_DUPLEX: Self = Self {
        request_body: "FULL_DUPLEX_STREAMED",
        response_body: Some("FULL_DUPLEX_STREAMED"),
        trailers: true,
    };

    fn json(self) -> Value {
        let trailers = |mode: &str| match self.trailers || mode == "FULL_DUPLEX_STREAMED" {
            true => "SEND",
            false => "SKIP",
        };
        let response = self.response_body.unwrap_or("NONE");
        json!({
            "request_header_mode": "SEND",
            "request_body_mode": self.request_body,
            "request_trailer_mode": trailers(self.request_body),
            "response_header_mode": if self.response_body.is_some() { "SEND" } else { "SKIP" },
            "response_body_mode": response,
            "response_trailer_mode": if self.response_body.is_some() { trailers(response) } else { "SKIP" },
        })
    }
}

/// How a gateway is configured.
#[derive(Clone, Debug)]
pub struct Setup {
    /// A listener for each.
    pub modes: Vec<Modes>,
    /// Metadata that the gateway's own filters set, by namespace.
    pub metadata: Vec<(&'static str, Value)>,
    /// Envoy reads the endpoints from metadata, and not from a header.
    pub reads_metadata: bool,
    /// Gateways connect by TLS.
    pub has_tls: bool,
    /// The picker's address; `None`: that of `picker.listen`.
    pub picker: Option<SocketAddr>,
    /// A request goes on without the picker where that fails, as with `failureMode: FailOpen`.
    pub fails_open: bool,
    /// Environment variables of the companion.
    pub variables: Vec<(&'static str, String)>,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            modes: vec![Modes::FULL_DUPLEX],
            metadata: Vec::new(),
            reads_metadata: false,
            has_tls: false,
            picker: None,
            fails_open: false,
            variables: Vec::new(),
        }
    }
}

/// An Envoy without the filter that asks a companion as most gateways do.
pub(crate) struct AskingEnvoy {
    address: SocketAddr,
    _envoy: Process,
    _folder: TempDir,
}

impl AskingEnvoy {
    pub(crate) async fn start(picker: SocketAddr) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let envoy = launch(folder.path(), &bootstrap(picker, &Setup::default())).await;
        let address = listens(folder.path(), &envoy, "0").await;
        Self { address, _envoy: envoy, _folder: folder }
    }

    /// The address for clients.
    pub(crate) const fn address(&self) -> SocketAddr {
        self.address
    }
}

/// A companion as an endpoint picker, and an Envoy with a listener for each of its modes.
pub struct PickerGateway {
    /// The companion.
    pub companion: Companion,
    /// The picker's address.
    pub picker: SocketAddr,
    /// Envoy's process.
    pub envoy: Process,
    listeners: Vec<(Modes, SocketAddr)>,
    client: reqwest::Client,
    _folder: TempDir,
}

impl PickerGateway {
    /// Starts both with these pools, all of it in one mode.
    ///
    /// # Panics
    /// With the log of the one that does not start.
    pub async fn start(head: &str, pools: &[String], modes: Modes) -> Self {
        let setup = Setup { modes: vec![modes], ..Setup::default() };
        Self::with(head, pools, "", &setup).await
    }

    /// [`Self::start`] with further keys of `picker`, each with a comma before it.
    ///
    /// # Panics
    /// As [`Self::start`].
    pub async fn with(head: &str, pools: &[String], keys: &str, setup: &Setup) -> Self {
        let picker = free_address();
        let head = format!("picker: {{listen: '{picker}'{keys}}}\n{head}");
        let variables = setup.variables.iter().map(|(name, value)| (*name, value.as_str()));
        let companion = Companion::start_with(&head, pools, &variables.collect::<Vec<_>>()).await;
        let folder = tempfile::tempdir().expect("a temporary folder");
        let envoy = launch(folder.path(), &bootstrap(setup.picker.unwrap_or(picker), setup)).await;
        let mut listeners = Vec::new();
        for (number, modes) in setup.modes.iter().enumerate() {
            listeners.push((*modes, listens(folder.path(), &envoy, &number.to_string()).await));
        }
        let client = reqwest::Client::builder().no_proxy().build().expect("a client can be built");
        let gateway = Self { companion, picker, envoy, listeners, client, _folder: folder };
        gateway.companion.picker_sessions().await;
        gateway
    }

    /// The address for clients in this mode.
    ///
    /// # Panics
    /// If the gateway has no such listener.
    #[must_use]
    pub fn address(&self, modes: Modes) -> SocketAddr {
        let found = self.listeners.iter().find(|(of_listener, _)| *of_listener == modes);
        found.expect("a listener in this mode").1
    }

    /// Sends a request to the first listener, and waits for the whole answer.
    ///
    /// # Panics
    /// If no answer arrives.
    pub async fn send(&self, ask: ClientRequest) -> Answer {
        let response = self.request(ask).send().await;
        let response = response.unwrap_or_else(|e| panic!("{e:?}\n{}", self.logs()));
        Answer::read(response).await.unwrap_or_else(|e| panic!("{e:?}\n{}", self.logs()))
    }

    /// Sends a request in the background; aborting the handle disconnects the client.
    #[must_use]
    pub fn spawn(&self, ask: ClientRequest) -> tokio::task::JoinHandle<Answer> {
        let request = self.request(ask);
        tokio::spawn(async move {
            let response = request.send().await.expect("an answer comes");
            Answer::read(response).await.expect("the answer is whole")
        })
    }

    /// Sends a request in the background, whose answer comes as soon as its headers do.
    #[must_use]
    pub fn open(&self, ask: ClientRequest) -> tokio::task::JoinHandle<reqwest::Result<reqwest::Response>> {
        tokio::spawn(self.request(ask).send())
    }

    fn request(&self, ask: ClientRequest) -> reqwest::RequestBuilder {
        let (_, address) = self.listeners.first().expect("a listener");
        let mut request = self.client.post(format!("http://{address}{}", ask.path)).json(&ask.body);
        for (name, value) in ask.headers {
            request = request.header(name, value);
        }
        request
    }

    /// The ends of both logs.
    #[must_use]
    pub fn logs(&self) -> String {
        format!("{}\n{}", self.companion.log(), self.envoy.tail())
    }
}

impl Deref for PickerGateway {
    type Target = Companion;

    fn deref(&self) -> &Companion {
        &self.companion
    }
}

/// The status of a service by the protocol of gRPC health checks; `None`: the server has no such service, or doesn't answer.
pub async fn health(address: SocketAddr, service: &str) -> Option<u8> {
    let socket = tokio::net::TcpStream::connect(address).await.ok()?;
    let (mut client, connection) = h2::client::handshake(socket).await.ok()?;
    let driver = tokio::spawn(async move { drop(connection.await) });
    let request = http::Request::post(format!("http://{address}/grpc.health.v1.Health/Check"))
        .header("content-type", "application/grpc")
        .header("te", "trailers");
    let (response, mut body) = client.send_request(request.body(()).ok()?, false).ok()?;
    // Field 1, a text, in a message of gRPC.
    let length = u8::try_from(service.len()).ok()?;
    let message = [&[0, 0, 0, 0, length.checked_add(2)?, 0x0a, length], service.as_bytes()].concat();
    body.send_data(message.into(), true).ok()?;
    let mut answer = response.await.ok()?.into_body();
    let message = answer.data().await?.ok()?;
    driver.abort();
    // Field 1, a number.
    match message.get(5..)? {
        [0x08, status] => Some(*status),
        _ => None,
    }
}

fn bootstrap(picker: SocketAddr, setup: &Setup) -> Value {
    let listeners = setup.modes.iter().enumerate();
    let listeners: Vec<Value> = listeners.map(|(number, modes)| listener(number, *modes, setup)).collect();
    let mut asked = json!({
        "name": "picker",
        "connect_timeout": "5s",
        "typed_extension_protocol_options": {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
            "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
            "explicit_http_config": {"http2_protocol_options": {}},
        }},
        "load_assignment": {"cluster_name": "picker", "endpoints": [{"lb_endpoints": [endpoint(picker)]}]},
    });
    if setup.has_tls {
        asked["transport_socket"] = json!({
            "name": "envoy.transport_sockets.tls",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
                "common_tls_context": {},
            },
        });
    }
    json!({
        "admin": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": 0}}},
        "static_resources": {"listeners": listeners, "clusters": [asked, servers(setup)]},
    })
}

fn endpoint(address: SocketAddr) -> Value {
    let socket = json!({"address": address.ip().to_string(), "port_value": address.port()});
    json!({"endpoint": {"address": {"socket_address": socket}}})
}

/// The cluster that sends a request where the picker says.
fn servers(setup: &Setup) -> Value {
    const HEADER: &str = "x-gateway-destination-endpoint";
    if !setup.reads_metadata {
        return json!({
            "name": "servers",
            "type": "ORIGINAL_DST",
            "lb_policy": "CLUSTER_PROVIDED",
            "connect_timeout": "5s",
            "original_dst_lb_config": {"use_http_header": true, "http_header_name": HEADER},
        });
    }
    json!({
        "name": "servers",
        "type": "ORIGINAL_DST",
        "lb_policy": "CLUSTER_PROVIDED",
        "connect_timeout": "5s",
        "original_dst_lb_config": {"metadata_key": {"key": "envoy.lb", "path": [{"key": HEADER}]}},
    })
}

fn listener(number: usize, modes: Modes, setup: &Setup) -> Value {
    let mut filters = Vec::new();
    if !setup.metadata.is_empty() {
        let metadata = setup.metadata.iter().map(|(namespace, value)| {
            json!({"metadata_namespace": namespace, "value": value, "allow_overwrite": true})
        });
        filters.push(json!({
            "name": "envoy.filters.http.set_metadata",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.filters.http.set_metadata.v3.Config",
                "metadata": metadata.collect::<Vec<_>>(),
            },
        }));
    }
    filters.push(json!({
        "name": "envoy.filters.http.ext_proc",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor",
            "grpc_service": {"envoy_grpc": {"cluster_name": "picker"}},
            "message_timeout": "60s",
            "allow_mode_override": false,
            "failure_mode_allow": setup.fails_open,
            "request_attributes": ["source.address"],
            "response_attributes": ["response.code_details"],
            "processing_mode": modes.json(),
            "metadata_options": {
                "forwarding_namespaces": {"untyped": ["envoy.lb", "envoy.lb.subset_hint"]},
                "receiving_namespaces": {"untyped": ["envoy.lb"]},
            },
        },
    }));
    filters.push(json!({
        "name": "envoy.filters.http.router",
        "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"},
    }));
    let manager = json!({
        "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "gateway",
        "http_protocol_options": {"enable_trailers": true},
        "use_remote_address": true,
        "preserve_external_request_id": true,
        "http_filters": filters,
        "route_config": {"virtual_hosts": [{
            "name": "all",
            "domains": ["*"],
            "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "servers", "timeout": "0s"}}],
        }]},
    });
    json!({
        "name": number.to_string(),
        "address": {"socket_address": {"address": "127.0.0.1", "port_value": 0}},
        "per_connection_buffer_limit_bytes": 32 << 20,
        "filter_chains": [{"filters": [{
            "name": "envoy.filters.network.http_connection_manager",
            "typed_config": manager,
        }]}],
    })
}
