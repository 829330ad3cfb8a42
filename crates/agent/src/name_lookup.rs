//! Name lookups and TCP connections of probes, hooks and the URL source.
//!
//! The names come from pods, and a name server may never answer. `getaddrinfo` would hold a thread until it gives up, long after
//! the probe's timeout; here a lookup is a future with sockets of its own, and dropping it ends it. Each owner (a pod) has its own
//! few lookups at a time, and every lookup its own resolver: owners share no socket, no cache and no queue.
//!
//! As in Go's resolver, `/etc/hosts` comes first, then the name servers of `/etc/resolv.conf`; other sources of nsswitch.conf
//! are not used.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use hickory_resolver::config::{LookupIpStrategy, NameServerConfig, ResolveHosts, ResolverConfig, ResolverOpts};
use hickory_resolver::net::NetError;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::proto::op::Query;
use hickory_resolver::proto::rr::{Name, RecordType};
use hickory_resolver::{Hosts, TokioResolver, system_conf};
use podwright_tasks::Pool;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

/// Looks up names with the node's resolver configuration. Clones share the limits.
#[derive(Clone)]
pub(crate) struct NameResolver(Arc<Shared>);

struct Shared {
    settings: Settings,
    /// The permits of each owner with a lookup under way.
    owners: Mutex<HashMap<String, Weak<Semaphore>>>,
}

enum Settings {
    /// `/etc/resolv.conf` and `/etc/hosts`, read again when they are older than [`REREAD`].
    System { pool: Pool, last: Mutex<Option<(Instant, Arc<ResolverSettings>)>> },
    #[cfg(test)]
    Fixed(Arc<ResolverSettings>),
}

/// The content of both files.
struct ResolverSettings {
    config: ResolverConfig,
    options: ResolverOpts,
    hosts: Arc<Hosts>,
}

/// A failed lookup, with the texts of Go's `net.DNSError`.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LookupError {
    #[error("lookup {0}: no such host")]
    NotFound(String),
    #[error("lookup {0}: i/o timeout")]
    Timeout(String),
    #[error("lookup {host}: {source}")]
    Failed { host: String, source: NetError },
}

impl NameResolver {
    /// With the configuration of the node. `pool` reads its files.
    pub(crate) fn system(pool: Pool) -> Self {
        Self::new(Settings::System { pool, last: Mutex::default() })
    }

    fn new(settings: Settings) -> Self {
        Self(Arc::new(Shared { settings, owners: Mutex::default() }))
    }

    /// With this name server and no hosts file.
    #[cfg(test)]
    pub(crate) fn of_server(server: SocketAddr) -> Self {
        Self::of_server_and_hosts(server, Hosts::default())
    }

    #[cfg(test)]
    fn of_server_and_hosts(server: SocketAddr, hosts: Hosts) -> Self {
        let mut name_server = NameServerConfig::udp(server.ip());
        name_server.connections.iter_mut().for_each(|connection| connection.port = server.port());
        let config = ResolverConfig::from_parts(None, vec![], vec![name_server]);
        let settings = ResolverSettings { config, options: ResolverOpts::default(), hosts: Arc::new(hosts) };
        Self::new(Settings::Fixed(Arc::new(settings)))
    }

    /// Connects to the first address of the host that accepts. The caller bounds the time.
    pub(crate) async fn connect(&self, owner: &str, host: &str, port: u16) -> io::Result<TcpStream> {
        let mut last = None;
        for ip in self.lookup(owner, host).await.map_err(io::Error::other)? {
            match TcpStream::connect(SocketAddr::new(ip, port)).await {
                Ok(stream) => return Ok(stream),
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| io::Error::other(LookupError::NotFound(host.to_owned()))))
    }

    /// The addresses of a host, IPv4 first. An IP address needs no lookup.
    pub(crate) async fn lookup(&self, owner: &str, host: &str) -> Result<Vec<IpAddr>, LookupError> {
        let host = host.trim_matches(['[', ']']);
        if let Ok(ip) = host.parse() {
            return Ok(vec![ip]);
        }
        let work = async {
            let permits = self.permits(owner);
            let _permit = permits.acquire().await.expect("the semaphore is never closed");
            let settings = self.settings().await;
            let listed = settings.in_hosts_file(host);
            if !listed.is_empty() {
                return Ok(listed);
            }
            let resolver = settings.resolver();
            let failed = |source| LookupError::Failed { host: host.to_owned(), source };
            match resolver.map_err(failed)?.lookup_ip(host).await {
                Ok(found) => Ok(found.iter().collect()),
                Err(error) if error.is_no_records_found() => Err(LookupError::NotFound(host.to_owned())),
                Err(NetError::Timeout) => Err(LookupError::Timeout(host.to_owned())),
                Err(source) => Err(failed(source)),
            }
        };
        timeout(LOOKUP_TIME_MAX, work).await.unwrap_or_else(|_| Err(LookupError::Timeout(host.to_owned())))
    }

    fn permits(&self, owner: &str) -> Arc<Semaphore> {
        let mut owners = self.0.owners.lock().expect("no panic under this lock");
        if let Some(permits) = owners.get(owner).and_then(Weak::upgrade) {
            return permits;
        }
        owners.retain(|_, permits| permits.strong_count() > 0);
        let permits = Arc::new(Semaphore::new(LOOKUPS_PER_OWNER));
        owners.insert(owner.to_owned(), Arc::downgrade(&permits));
        permits
    }

    async fn settings(&self) -> Arc<ResolverSettings> {
        let (pool, last) = match &self.0.settings {
            Settings::System { pool, last } => (pool, last),
            #[cfg(test)]
            Settings::Fixed(settings) => return Arc::clone(settings),
        };
        let known = last.lock().expect("no panic under this lock").clone();
        if let Some((read_at, settings)) = &known
            && read_at.elapsed() < REREAD
        {
            return Arc::clone(settings);
        }
        let settings = match pool.run("resolver configuration", READ_TIME_MAX, ResolverSettings::read).await {
            Ok(settings) => Arc::new(settings),
            Err(error) => {
                tracing::warn!(%error, "reading the resolver configuration failed");
                known.map_or_else(|| Arc::new(ResolverSettings::local()), |(_, settings)| settings)
            }
        };
        *last.lock().expect("no panic under this lock") = Some((Instant::now(), Arc::clone(&settings)));
        settings
    }
}

impl ResolverSettings {
    /// Reads the node's files. Blocks.
    fn read() -> Self {
        let hosts = Arc::new(Hosts::from_system().unwrap_or_default());
        match system_conf::read_system_conf() {
            Ok((config, options)) => Self { config, options, hosts },
            // No file, or no name server in it.
            Err(_) => Self { hosts, ..Self::local() },
        }
    }

    /// glibc and Go: without configuration the name server is on this host.
    fn local() -> Self {
        let server = NameServerConfig::udp_and_tcp(IpAddr::from(Ipv4Addr::LOCALHOST));
        let config = ResolverConfig::from_parts(None, vec![], vec![server]);
        Self { config, options: ResolverOpts::default(), hosts: Arc::default() }
    }

    /// The addresses of a name in the hosts file, which is complete for the names it has: the resolver would also ask the name
    /// servers, for the other address family and with the search domains.
    fn in_hosts_file(&self, host: &str) -> Vec<IpAddr> {
        let Ok(name) = Name::from_utf8(host) else { return vec![] };
        let of_type = |kind| self.hosts.lookup_static_host(&Query::query(name.clone(), kind));
        let found = [RecordType::A, RecordType::AAAA].into_iter().filter_map(of_type);
        found
            .flat_map(|lookup| lookup.answers().iter().filter_map(|record| record.data.ip_addr()).collect::<Vec<_>>())
            .collect()
    }

    /// A resolver for one lookup. Its sockets and tasks end with it.
    fn resolver(&self) -> Result<TokioResolver, NetError> {
        let mut builder = TokioResolver::builder_with_config(self.config.clone(), TokioRuntimeProvider::default());
        *builder.options_mut() = self.options.clone();
        let options = builder.options_mut();
        options.ip_strategy = LookupIpStrategy::Ipv4AndIpv6;
        options.attempts = options.attempts.min(ATTEMPTS_MAX);
        options.cache_size = 0;
        // See `in_hosts_file`.
        options.use_hosts_file = ResolveHosts::Never;
        builder.build()
    }
}

/// Further lookups of the same owner wait, within their own time.
const LOOKUPS_PER_OWNER: usize = 4;
/// More than any probe has; hooks and the URL source have limits of their own, too.
const LOOKUP_TIME_MAX: Duration = Duration::from_secs(30);
/// Go: resolv.conf is checked for changes every five seconds.
const REREAD: Duration = Duration::from_secs(5);
const READ_TIME_MAX: Duration = Duration::from_secs(2);
/// Of `options attempts:n` in resolv.conf; glibc has the same limit.
const ATTEMPTS_MAX: usize = 5;

#[cfg(test)]
mod tests;
