//! What clients send and receive, through a real Envoy: bodies, answers, web pages, identities and the trust in them.

mod answers;
mod api_keys;
mod bodies;
mod both_filters;
mod client_tls;
mod identity;
mod idle;
mod large_bodies;
mod model_list;
mod openai;
mod pages;
mod paths;
mod reported_errors;
mod rewrite;
mod secrets;
mod spoof;
mod trust;
mod upstream_tls;
