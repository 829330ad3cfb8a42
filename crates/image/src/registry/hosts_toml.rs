//! Which hosts serve a registry: `hosts.toml` in containerd's format, one directory per registry.
//!
//! ```text
//! <dir>/docker.io/hosts.toml     or  <dir>/registry.example_5000_/hosts.toml, <dir>/registry.example:5000/…, <dir>/_default/…
//!
//! server = "https://registry-1.docker.io"            # asked last; without it, the registry itself
//! [host."https://mirror.example:5000"]               # asked first, in the order of the file
//!   capabilities = ["pull", "resolve"]               # resolve: trusted to say which image a tag is
//!   ca = "/etc/certs/mirror.pem"
//! ```
//!
//! The file is read again for each pull. [`parse_hosts_toml`] takes bytes of any origin and is an entry point for fuzzing.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderName, HeaderValue, Uri};
use toml::{Table, Value};

use crate::digest::excerpt;
use crate::durable::{DurableFileError, failed};

/// A host that serves a registry.
#[derive(Clone, PartialEq)]
pub struct RegistryHost {
    /// `http` or `https`.
    pub(crate) scheme: Scheme,
    /// Host name and optional port.
    pub(crate) authority: Authority,
    /// The path in front of a repository's name, usually `/v2`.
    pub(crate) path: String,
    /// It serves content by digest (capability `pull`).
    pub(crate) pull: bool,
    /// It resolves tags (capability `resolve`).
    pub(crate) resolve: bool,
    /// Another host than the registry of the reference: it learns the registry's name (`ns=`).
    pub(crate) mirror: bool,
    /// It gets the credentials of the registry: it is the registry, or where `server` says that the registry is.
    pub(crate) trusted: bool,
    /// Certificates in PEM; empty: the system's.
    pub(crate) ca: Vec<PathBuf>,
    /// Certificate and key of this node; the key may be in the certificate's file.
    pub(crate) client: Vec<(PathBuf, Option<PathBuf>)>,
    /// Any certificate is accepted.
    pub(crate) skip_verify: bool,
    /// Added to every request; may be secret.
    pub(crate) headers: Vec<(HeaderName, HeaderValue)>,
}

/// Why a `hosts.toml` can't be used.
#[derive(Debug, thiserror::Error)]
pub enum HostsTomlError {
    /// The file can't be read.
    #[error(transparent)]
    File(#[from] DurableFileError),
    /// The text is no TOML.
    #[error("invalid TOML: {0}")]
    Syntax(String),
    /// A field has a value that makes no sense.
    #[error("{field}: {problem}")]
    Field {
        /// Its path in the file.
        field: String,
        /// What is wrong.
        problem: &'static str,
    },
    /// The registry's own name is no host.
    #[error("{0:?} is not a valid host name")]
    Registry(String),
    /// What is wrong in one file.
    #[error("{}", path.display())]
    In {
        /// The file.
        path: PathBuf,
        /// The problem.
        #[source]
        source: Box<HostsTomlError>,
    },
}

/// The hosts of a registry in the order in which they are asked. `dir` is `None` without a configuration.
pub(crate) fn registry_hosts(dir: Option<&Path>, registry: &str) -> Result<Vec<RegistryHost>, HostsTomlError> {
    for place in dir.into_iter().flat_map(|dir| candidate_dirs(dir, registry)) {
        let path = place.join("hosts.toml");
        let inside = |source| HostsTomlError::In { path: path.clone(), source: Box::new(source) };
        match read_bounded(&path) {
            Ok(text) => return parse_hosts_toml(&text, registry, &place).map_err(inside),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(failed("read", &path)(e).into()),
        }
    }
    Ok(vec![upstream(registry)?])
}

/// Reads a `hosts.toml` for one registry. Relative paths of certificates are below `dir`.
pub fn parse_hosts_toml(text: &[u8], registry: &str, dir: &Path) -> Result<Vec<RegistryHost>, HostsTomlError> {
    let text = std::str::from_utf8(text).map_err(|e| HostsTomlError::Syntax(e.to_string()))?;
    // Only the message: the text around the error may hold a secret header.
    let file: Table = text.parse().map_err(|e: toml::de::Error| HostsTomlError::Syntax(e.message().to_owned()))?;
    let mut hosts = vec![];
    let named = match file.get("host") {
        None => Table::new(),
        Some(Value::Table(hosts)) => hosts.clone(),
        Some(_) => return Err(wrong("host", "must be a table")),
    };
    if named.len() > HOSTS_MAX {
        return Err(wrong("host", "has more than 32 hosts"));
    }
    for (url, value) in &named {
        let field = format!("host.{:?}", excerpt(url));
        let Value::Table(options) = value else { return Err(wrong(&field, "must be a table")) };
        hosts.push(host(&field, url, options, registry, dir)?);
    }
    hosts.push(match file.get("server") {
        None => host_options("", upstream(registry)?, &file, dir)?,
        Some(Value::String(url)) => host("server", url, &file, registry, dir)?,
        Some(_) => return Err(wrong("server", "must be a URL")),
    });
    let server = hosts.last().map(|server| server.authority.clone());
    for host in &mut hosts {
        host.trusted = !host.mirror || Some(&host.authority) == server.as_ref();
    }
    Ok(hosts)
}

/// The registry itself. `docker.io` is served by another host; a registry on the loopback interface needs no TLS.
fn upstream(registry: &str) -> Result<RegistryHost, HostsTomlError> {
    let host = if registry == "docker.io" { DOCKER_HOST } else { registry };
    let authority: Authority = host.parse().map_err(|_| HostsTomlError::Registry(excerpt(registry)))?;
    let name = authority.host().trim_matches(['[', ']']);
    let loopback = name == "localhost" || name.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback());
    let scheme = if loopback { Scheme::HTTP } else { Scheme::HTTPS };
    Ok(RegistryHost {
        scheme,
        authority,
        path: "/v2".into(),
        pull: true,
        resolve: true,
        mirror: false,
        trusted: true,
        ca: vec![],
        client: vec![],
        skip_verify: false,
        headers: vec![],
    })
}

fn host(field: &str, url: &str, options: &Table, registry: &str, dir: &Path) -> Result<RegistryHost, HostsTomlError> {
    let full = if url.contains("://") { url.to_owned() } else { format!("https://{url}") };
    let url: Uri = full.parse().map_err(|_| wrong(field, "is no URL"))?;
    let parts = url.into_parts();
    let scheme = parts.scheme.filter(|scheme| *scheme == Scheme::HTTP || *scheme == Scheme::HTTPS);
    let scheme = scheme.ok_or_else(|| wrong(field, "must begin with http:// or https://"))?;
    let authority = parts.authority.ok_or_else(|| wrong(field, "has no host"))?;
    if authority.as_str().contains('@') {
        return Err(wrong(field, "must not contain credentials"));
    }
    let path = parts.path_and_query.as_ref().map_or("", PathAndQuery::path).trim_end_matches('/');
    let override_path = boolean(field, options, "override_path")?;
    let path = if override_path || path.ends_with("/v2") { path.to_owned() } else { format!("{path}/v2") };
    let own = upstream(registry)?;
    let mirror = authority != own.authority && authority.as_str() != registry;
    host_options(field, RegistryHost { scheme, authority, path, mirror, ..own }, options, dir)
}

fn host_options(field: &str, host: RegistryHost, options: &Table, dir: &Path) -> Result<RegistryHost, HostsTomlError> {
    let name = |key: &str| if field.is_empty() { key.to_owned() } else { format!("{field}.{key}") };
    let (pull, resolve) = match options.get("capabilities") {
        None => (true, true),
        Some(_) => {
            let given = strings(&name("capabilities"), options.get("capabilities"))?;
            (given.iter().any(|c| c == "pull"), given.iter().any(|c| c == "resolve"))
        }
    };
    let ca = strings(&name("ca"), options.get("ca"))?.into_iter().map(|path| dir.join(path)).collect();
    let client = client(&name("client"), options.get("client"), dir)?;
    let skip_verify = boolean(field, options, "skip_verify")?;
    let headers = headers(&name("header"), options.get("header"))?;
    Ok(RegistryHost { pull, resolve, ca, client, skip_verify, headers, ..host })
}

/// `"pem"`, `["pem", …]` or `[["certificate", "key"], …]`.
fn client(field: &str, value: Option<&Value>, dir: &Path) -> Result<Vec<(PathBuf, Option<PathBuf>)>, HostsTomlError> {
    let Some(Value::Array(pairs)) = value else {
        return Ok(strings(field, value)?.into_iter().map(|pem| (dir.join(pem), None)).collect());
    };
    let pair = |pair: &Value| match strings(field, Some(pair))?.as_slice() {
        [pem] => Ok((dir.join(pem), None)),
        [certificate, key] if key.is_empty() => Ok((dir.join(certificate), None)),
        [certificate, key] => Ok((dir.join(certificate), Some(dir.join(key)))),
        _ => Err(wrong(field, "must be pairs of certificate and key")),
    };
    pairs.iter().map(pair).collect()
}

fn headers(field: &str, value: Option<&Value>) -> Result<Vec<(HeaderName, HeaderValue)>, HostsTomlError> {
    let table = match value {
        None => return Ok(vec![]),
        Some(Value::Table(table)) => table,
        Some(_) => return Err(wrong(field, "must be a table")),
    };
    let mut headers = vec![];
    for (name, values) in table {
        let field = format!("{field}.{:?}", excerpt(name));
        let parsed = HeaderName::try_from(name.as_str()).map_err(|_| wrong(&field, "is not a valid header name"))?;
        for text in strings(&field, Some(values))? {
            let mut value = HeaderValue::try_from(text).map_err(|_| wrong(&field, "is not a valid header value"))?;
            value.set_sensitive(true);
            headers.push((parsed.clone(), value));
        }
    }
    Ok(headers)
}

/// A string or a list of strings.
fn strings(field: &str, value: Option<&Value>) -> Result<Vec<String>, HostsTomlError> {
    match value {
        None => Ok(vec![]),
        Some(Value::String(text)) => Ok(vec![text.clone()]),
        Some(Value::Array(list)) => {
            let text = |value: &Value| value.as_str().map(str::to_owned);
            list.iter().map(text).collect::<Option<_>>().ok_or_else(|| wrong(field, "must be a list of strings"))
        }
        Some(_) => Err(wrong(field, "must be a string or a list of strings")),
    }
}

fn boolean(field: &str, options: &Table, key: &str) -> Result<bool, HostsTomlError> {
    match options.get(key) {
        None => Ok(false),
        Some(Value::Boolean(value)) => Ok(*value),
        Some(_) => Err(wrong(&format!("{field}.{key}"), "must be true or false")),
    }
}

fn wrong(field: &str, problem: &'static str) -> HostsTomlError {
    HostsTomlError::Field { field: field.to_owned(), problem }
}

/// containerd: `hostPaths`. A colon is not allowed in file names everywhere, hence the form with underscores.
fn candidate_dirs(dir: &Path, registry: &str) -> Vec<PathBuf> {
    let mut names = vec![];
    if let Some((host, port)) = registry.rsplit_once(':') {
        names.push(format!("{host}_{port}_"));
    }
    names.extend([registry.to_owned(), "_default".to_owned()]);
    names.into_iter().map(|name| dir.join(name)).collect()
}

fn read_bounded(path: &Path) -> io::Result<Vec<u8>> {
    let mut text = vec![];
    io::Read::read_to_end(&mut io::Read::take(fs::File::open(path)?, FILE_BYTES_MAX + 1), &mut text)?;
    if text.len() as u64 > FILE_BYTES_MAX { Err(io::ErrorKind::FileTooLarge.into()) } else { Ok(text) }
}

impl fmt::Display for RegistryHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}{}", self.scheme, self.authority, self.path)
    }
}

/// Without headers: they may be secret.
impl fmt::Debug for RegistryHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pull, resolve, mirror, ca, skip_verify, .. } = self;
        write!(f, "{self} pull={pull} resolve={resolve} mirror={mirror} ca={ca:?} skip_verify={skip_verify}")
    }
}

/// containerd: `docker.DefaultHost`.
const DOCKER_HOST: &str = "registry-1.docker.io";
/// Real files are far smaller.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Each may cost a timeout.
const HOSTS_MAX: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str, registry: &str) -> Result<Vec<RegistryHost>, HostsTomlError> {
        parse_hosts_toml(text.as_bytes(), registry, Path::new("/conf"))
    }

    fn shown(hosts: &[RegistryHost]) -> Vec<String> {
        hosts.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn hosts_come_in_the_order_of_the_file_and_the_server_is_last() {
        let text = r#"
            server = "https://docker.io"
            [host."https://z.example:5000"]
              capabilities = ["pull"]
              ca = "z.pem"
              client = [["c.pem", "k.pem"], ["both.pem", ""]]
              [host."https://z.example:5000".header]
                x-token = ["geheim"]
            [host."http://a.example/prefix"]
              skip_verify = true
            [host."b.example/raw"]
              override_path = true
            [host."https://registry-1.docker.io"]
        "#;
        let hosts = parse(text, "docker.io").unwrap();
        let urls = ["https://z.example:5000/v2", "http://a.example/prefix/v2", "https://b.example/raw"];
        assert_eq!(shown(&hosts)[..3], urls);
        assert_eq!(shown(&hosts)[3..], ["https://registry-1.docker.io/v2", "https://docker.io/v2"]);
        let first = &hosts[0];
        assert!(first.pull && !first.resolve && first.mirror && hosts[1].resolve && hosts[1].skip_verify);
        assert!(!hosts[3].mirror && !hosts[4].mirror);
        assert!(!first.trusted && !hosts[1].trusted && hosts[3].trusted && hosts[4].trusted);
        assert_eq!(first.ca, [Path::new("/conf/z.pem")]);
        let pair = (PathBuf::from("/conf/c.pem"), Some(PathBuf::from("/conf/k.pem")));
        assert_eq!(first.client, [pair, (PathBuf::from("/conf/both.pem"), None)]);
        assert_eq!(first.headers.len(), 1);
        assert!(!format!("{hosts:?}").contains("geheim"));
    }

    #[test]
    fn the_server_of_a_registry_gets_its_credentials_and_a_mirror_does_not() {
        let text =
            "server = \"http://127.0.0.1:5000\"\n[host.\"http://127.0.0.1:5000\"]\n[host.\"https://m.example\"]\n";
        let hosts = parse(text, "team.example").unwrap();
        let trusted: Vec<bool> = hosts.iter().map(|host| host.trusted).collect();
        assert_eq!((trusted, hosts[2].mirror), (vec![true, false, true], true), "{hosts:?}");
        let without_server = parse("[host.\"https://m.example\"]\n", "team.example").unwrap();
        assert!(!without_server[0].trusted && without_server[1].trusted);
    }

    #[test]
    fn without_a_server_the_registry_itself_is_last() {
        assert_eq!(shown(&parse("", "docker.io").unwrap()), ["https://registry-1.docker.io/v2"]);
        assert_eq!(shown(&parse("", "example.com:5000").unwrap()), ["https://example.com:5000/v2"]);
        for local in ["localhost:5000", "127.0.0.1:5000", "[::1]:5000"] {
            assert_eq!(shown(&parse("", local).unwrap()), [format!("http://{local}/v2")]);
        }
        assert!(parse("skip_verify = true", "example.com").unwrap()[0].skip_verify);
    }

    #[test]
    fn wrong_values_are_refused_by_the_name_of_their_field() {
        let rows = [
            ("server = 1", "server: must be a URL"),
            ("server = \"file:///etc\"", "server: "),
            ("host = 1", "host: must be a table"),
            ("[host]\nx = 1", r#"host."x": must be a table"#),
            ("[host.\"ftp://x\"]", "must begin with http:// or https://"),
            ("[host.\"https://u:p@x\"]", "must not contain credentials"),
            ("[host.x]\nca = 1", r#"host."x".ca: must be a string or a list of strings"#),
            ("[host.x]\nskip_verify = \"yes\"", r#"host."x".skip_verify: must be true or false"#),
            ("[host.x]\nclient = [[\"a\", \"b\", \"c\"]]", r#"host."x".client: must be pairs"#),
            ("[host.x.header]\n\"a b\" = \"c\"", "is not a valid header name"),
            ("[host.x.header]\na = \"c\\n\"", "is not a valid header value"),
            ("a = [", "invalid TOML"),
        ];
        for (text, message) in rows {
            let error = parse(text, "example.com").unwrap_err().to_string();
            assert!(error.contains(message), "{text}: {error:?} lacks {message:?}");
        }
        let error = parse("password = \"geheim", "example.com").unwrap_err();
        assert!(!format!("{error} {error:?}").contains("geheim"), "{error:?}");
    }

    #[test]
    fn the_directory_is_found_by_registry_or_default() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, server: &str| {
            fs::create_dir_all(dir.path().join(name)).unwrap();
            fs::write(dir.path().join(name).join("hosts.toml"), format!("server = \"https://{server}\"")).unwrap();
        };
        write("_default", "d");
        write("a.example_5000_", "a");
        write("b.example", "b");
        let first = |registry| registry_hosts(Some(dir.path()), registry).unwrap()[0].to_string();
        assert_eq!(first("a.example:5000"), "https://a/v2");
        assert_eq!(first("b.example"), "https://b/v2");
        assert_eq!(first("c.example"), "https://d/v2");
        assert_eq!(registry_hosts(None, "c.example").unwrap()[0].to_string(), "https://c.example/v2");
        fs::write(dir.path().join("b.example/hosts.toml"), "server = 1").unwrap();
        let error = registry_hosts(Some(dir.path()), "b.example").unwrap_err();
        assert!(error.to_string().ends_with("b.example/hosts.toml"), "{error}");
    }
}
