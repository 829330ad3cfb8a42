//! Host names of registries: looked up by the system, on threads of their own.

use std::future::Future;
use std::net::{SocketAddr, ToSocketAddrs};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper_util::client::legacy::connect::dns::Name;
use podwright_tasks::{Pool, PoolKey};
use tower::Service;

/// Runs `getaddrinfo` in the pool: a name server that never answers holds the few threads of its own name, and no others.
#[derive(Clone, Debug)]
pub(super) struct PooledLookup(Pool);

impl PooledLookup {
    pub(super) fn new(pool: Pool) -> Self {
        Self(pool)
    }
}

type LookupError = Box<dyn std::error::Error + Send + Sync>;

impl Service<Name> for PooledLookup {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = LookupError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, LookupError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), LookupError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let pool = self.0.clone();
        Box::pin(async move {
            let host = name.as_str().to_owned();
            let key = PoolKey::from(format!("lookup of {host}"));
            let found = pool.run(key, LOOKUP_LIMIT, move || (host.as_str(), 0).to_socket_addrs()).await?;
            // The port is set by the connector.
            Ok(found?)
        })
    }
}

/// The resolver's own default is 5 s for each of up to three name servers.
const LOOKUP_LIMIT: Duration = Duration::from_secs(15);
