//! Answers companions that ask for a pool which prefers them.

use std::net::SocketAddr;

use tonic::{Request, Response, Status};

use crate::election::Elections;
use crate::election::companions::{
    ClaimsRequest, ClaimsResponse, Companions, CompanionsServer, MESSAGE_BYTES_MAX, YieldRequest,
    YieldResponse,
};

/// Answers other companions.
pub(super) struct Service(Elections);

impl Service {
    pub(super) fn server(elections: Elections) -> CompanionsServer<Self> {
        CompanionsServer::new(Self(elections)).max_decoding_message_size(MESSAGE_BYTES_MAX)
    }
}

#[tonic::async_trait]
impl Companions for Service {
    async fn r#yield(&self, request: Request<YieldRequest>) -> Result<Response<YieldResponse>, Status> {
        let YieldRequest { pool, address } = request.into_inner();
        let yields = match address.parse::<SocketAddr>() {
            Ok(address) => self.0.yield_to(&pool, address).await,
            Err(_) => false,
        };
        Ok(Response::new(YieldResponse { yields }))
    }

    async fn claims(&self, request: Request<ClaimsRequest>) -> Result<Response<ClaimsResponse>, Status> {
        let claims = self.0.claims(&request.into_inner().pool);
        Ok(Response::new(ClaimsResponse { claims }))
    }
}
