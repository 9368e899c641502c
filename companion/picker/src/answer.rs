//! The messages to the gateway.

use bytes::Bytes;
use penstock_filter_core::header_sanitizer::HeaderEdit;
use penstock_filter_core::local_reply::LocalReply;
use penstock_wire::names::ENDPOINT_HEADER;
use prost_types::value::Kind;
use prost_types::{Struct, Value};

use crate::generated::body_mutation::Mutation;
use crate::generated::processing_response::Response;
use crate::generated::{
    BodyMutation, BodyResponse, CommonResponse, HeaderMutation, HeadersResponse, HttpStatus,
    ImmediateResponse, ProcessingResponse, StreamedBodyResponse, TrailersResponse,
};
use crate::headers;

/// Envoy's details of the picker's replies, in its access log.
const DETAILS: &str = "penstock";
/// The namespace of the metadata that names a request's endpoint.
const LB: &str = "envoy.lb";

/// Which of the two messages of an exchange an answer is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Request,
    Response,
}

impl Side {
    fn headers(self, answer: HeadersResponse) -> Response {
        match self {
            Self::Request => Response::RequestHeaders(answer),
            Self::Response => Response::ResponseHeaders(answer),
        }
    }

    fn body(self, answer: BodyResponse) -> Response {
        match self {
            Self::Request => Response::RequestBody(answer),
            Self::Response => Response::ResponseBody(answer),
        }
    }
}

/// The edits of a message's headers, with all that goes with them: for a request the endpoint as metadata, and a new choice of the route.
fn common(side: Side, edits: &[HeaderEdit]) -> (CommonResponse, Option<Struct>) {
    let is_request = side == Side::Request;
    let mutation = if is_request { headers::of_request(edits) } else { headers::of_response(edits) };
    let metadata = headers::endpoint(edits).filter(|_| is_request).map(metadata);
    let is_empty = mutation == HeaderMutation::default();
    let common = CommonResponse {
        header_mutation: (!is_empty).then_some(mutation),
        body_mutation: None,
        clear_route_cache: is_request,
    };
    (common, metadata)
}

/// `{"envoy.lb": {"x-gateway-destination-endpoint": endpoint}}`
fn metadata(endpoint: &str) -> Struct {
    let one = |name: &str, kind| Struct { fields: [(name.to_owned(), Value { kind: Some(kind) })].into() };
    one(LB, Kind::StructValue(one(ENDPOINT_HEADER, Kind::StringValue(endpoint.to_owned()))))
}

/// The answer to headers.
pub(crate) fn to_headers(side: Side, edits: &[HeaderEdit]) -> ProcessingResponse {
    let (common, dynamic_metadata) = common(side, edits);
    ProcessingResponse {
        response: Some(side.headers(HeadersResponse { response: Some(common) })),
        dynamic_metadata,
    }
}

/// The answer to a whole body or to a piece of it. `body`: what it becomes; `None`: it stays. Edits of headers count for a whole body.
pub(crate) fn to_body(side: Side, edits: &[HeaderEdit], body: Option<Bytes>) -> ProcessingResponse {
    let (common, dynamic_metadata) = match edits {
        [] => (CommonResponse::default(), None),
        edits => common(side, edits),
    };
    let body_mutation = body.map(|body| BodyMutation { mutation: Some(Mutation::Body(body)) });
    let response = CommonResponse { body_mutation, ..common };
    ProcessingResponse {
        response: Some(side.body(BodyResponse { response: Some(response) })),
        dynamic_metadata,
    }
}

/// A piece of a body that is sent back. `end`: its last one, and no trailers follow.
pub(crate) fn piece(side: Side, body: Bytes, end: bool) -> ProcessingResponse {
    let piece = StreamedBodyResponse { body, end_of_stream: end };
    let body_mutation = Some(BodyMutation { mutation: Some(Mutation::StreamedResponse(piece)) });
    let response = CommonResponse { body_mutation, ..CommonResponse::default() };
    ProcessingResponse {
        response: Some(side.body(BodyResponse { response: Some(response) })),
        dynamic_metadata: None,
    }
}

/// The answer to trailers.
pub(crate) const fn to_trailers(side: Side) -> ProcessingResponse {
    let response = match side {
        Side::Request => Response::RequestTrailers(TrailersResponse {}),
        Side::Response => Response::ResponseTrailers(TrailersResponse {}),
    };
    ProcessingResponse { response: Some(response), dynamic_metadata: None }
}

/// A reply to the client, with these edits of its headers.
pub(crate) fn reply(reply: LocalReply, edits: Vec<HeaderEdit>) -> ProcessingResponse {
    let mut status = reply.status;
    let mut mutation = HeaderMutation::default();
    for (name, value) in headers::edited(reply.headers, edits) {
        if name == ":status" {
            status = value.parse().unwrap_or(status);
        } else if name != "content-length" {
            // The gateway counts the body itself.
            mutation.set_headers.push(headers::set(&name, value));
        }
    }
    let immediate = ImmediateResponse {
        status: Some(HttpStatus { code: status }),
        headers: Some(mutation),
        body: reply.body.into(),
        details: DETAILS.to_owned(),
    };
    ProcessingResponse { response: Some(Response::ImmediateResponse(immediate)), dynamic_metadata: None }
}
