//! The flags of the commands that connect to a running pod: `attach` and `port-forward`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use clap::Args;

use super::query_flags::SocketFlags;

/// `podwright attach`
#[derive(Args, Debug)]
pub(crate) struct AttachFlags {
    /// The pod; the node name at the end of a static pod's name may be omitted.
    pub(crate) pod: String,
    /// The container. [default: that of the annotation kubectl.kubernetes.io/default-container, else the first]
    #[arg(short, long, value_name = "CONTAINER")]
    pub(crate) container: Option<String>,
    /// Pass stdin to the process, if its container has `stdin: true`.
    #[arg(short = 'i', long)]
    pub(crate) stdin: bool,
    /// Use the terminal of the process, if its container has `tty: true`.
    #[arg(short, long)]
    pub(crate) tty: bool,
    /// The namespace. [default: default]
    #[arg(short, long, value_name = "NAMESPACE")]
    pub(crate) namespace: Option<String>,
    #[command(flatten)]
    pub(crate) socket: SocketFlags,
}

/// `podwright port-forward`
#[derive(Args, Debug)]
pub(crate) struct PortForwardFlags {
    /// The pod; the node name at the end of a static pod's name may be omitted.
    pub(crate) pod: String,
    /// The ports: `8080:80` forwards port 8080 of this host to port 80 of the pod, `80` the same port, `:80` a free one. The port of
    /// the pod may be the name of a container port.
    #[arg(value_name = "[LOCAL:]REMOTE", required = true)]
    pub(crate) ports: Vec<PortPair>,
    /// The addresses to listen on, or `localhost` for 127.0.0.1 and ::1.
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',', default_value = "localhost")]
    pub(crate) address: Vec<ListenAddress>,
    /// The namespace. [default: default]
    #[arg(short, long, value_name = "NAMESPACE")]
    pub(crate) namespace: Option<String>,
    #[command(flatten)]
    pub(crate) socket: SocketFlags,
}

/// A local port, and the port of the pod that it leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PortPair {
    /// `None`: the same as the port of the pod. 0: any free port.
    pub(crate) local: Option<u16>,
    pub(crate) remote: PodPort,
}

/// A port of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PodPort {
    Number(u16),
    /// The name of a container port.
    Named(String),
}

/// An argument of `--address`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ListenAddress {
    /// Both loopback addresses; one of them is enough.
    Localhost,
    Ip(IpAddr),
}

/// Why a port or an address cannot be used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ForwardArgumentError {
    #[error("must be PORT, LOCAL:REMOTE or :REMOTE, with ports from 1 to 65535")]
    Ports,
    #[error("must be an IP address or localhost")]
    Address,
}

impl FromStr for PortPair {
    type Err = ForwardArgumentError;

    fn from_str(text: &str) -> Result<Self, ForwardArgumentError> {
        let (local, remote) = text.split_once(':').map_or((None, text), |(local, remote)| (Some(local), remote));
        let number = |text: &str| text.parse::<u16>().ok().filter(|port| *port > 0);
        let local = match local {
            None => None,
            Some("" | "0") => Some(0),
            Some(local) => Some(number(local).ok_or(ForwardArgumentError::Ports)?),
        };
        let remote = match number(remote) {
            Some(port) => PodPort::Number(port),
            None if is_port_name(remote) => PodPort::Named(remote.to_owned()),
            None => return Err(ForwardArgumentError::Ports),
        };
        Ok(Self { local, remote })
    }
}

/// Kubernetes: `IsValidPortName`; a letter is what distinguishes it from a number that is out of range.
fn is_port_name(text: &str) -> bool {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    text.len() <= 15 && text.chars().all(allowed) && text.chars().any(|c| c.is_ascii_lowercase())
}

impl FromStr for ListenAddress {
    type Err = ForwardArgumentError;

    fn from_str(text: &str) -> Result<Self, ForwardArgumentError> {
        match text {
            "localhost" => Ok(Self::Localhost),
            text => text.parse().map(Self::Ip).map_err(|_| ForwardArgumentError::Address),
        }
    }
}

impl ListenAddress {
    /// The addresses to listen on.
    pub(crate) fn all(self) -> Vec<IpAddr> {
        match self {
            Self::Localhost => vec![IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)],
            Self::Ip(ip) => vec![ip],
        }
    }
}

impl AttachFlags {
    /// The namespace, or `default`.
    pub(crate) fn namespace(&self) -> &str {
        self.namespace.as_deref().unwrap_or("default")
    }
}

impl PortForwardFlags {
    /// The namespace, or `default`.
    pub(crate) fn namespace(&self) -> &str {
        self.namespace.as_deref().unwrap_or("default")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_written_as_for_kubectl() {
        let pair = |local, remote| Ok(PortPair { local, remote });
        for (text, expected) in [
            ("80", pair(None, PodPort::Number(80))),
            ("8080:80", pair(Some(8080), PodPort::Number(80))),
            (":80", pair(Some(0), PodPort::Number(80))),
            ("0:80", pair(Some(0), PodPort::Number(80))),
            ("8443:https", pair(Some(8443), PodPort::Named("https".into()))),
            ("", Err(ForwardArgumentError::Ports)),
            ("8080:", Err(ForwardArgumentError::Ports)),
            ("0", Err(ForwardArgumentError::Ports)),
            ("80:0", Err(ForwardArgumentError::Ports)),
            ("70000:80", Err(ForwardArgumentError::Ports)),
            ("70000", Err(ForwardArgumentError::Ports)),
            ("http:80", Err(ForwardArgumentError::Ports)),
            ("1:2:3", Err(ForwardArgumentError::Ports)),
            ("8080:HTTP", Err(ForwardArgumentError::Ports)),
        ] {
            assert_eq!(text.parse::<PortPair>(), expected, "{text}");
        }
        assert_eq!("nowhere".parse::<ListenAddress>(), Err(ForwardArgumentError::Address));
        assert_eq!("::1".parse::<ListenAddress>().map(ListenAddress::all), Ok(vec![IpAddr::V6(Ipv6Addr::LOCALHOST)]));
    }
}
