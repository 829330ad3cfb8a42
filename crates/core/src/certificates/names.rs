//! The names in a certificate: which are wanted, and which the present one lacks.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;

/// Subject and subject alternative names of a certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CertificateNames {
    /// CN of the subject.
    pub common_name: String,
    /// O of the subject.
    pub organizations: BTreeSet<String>,
    /// Subject alternative names that are host names.
    pub dns_names: BTreeSet<String>,
    /// Subject alternative names that are addresses.
    pub ip_addresses: BTreeSet<IpAddr>,
}

/// The first name that a certificate lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MissingName {
    /// The certificate has another common name.
    CommonName,
    /// This organization.
    Organization(String),
    /// This host name.
    DnsName(String),
    /// This address.
    IpAddress(IpAddr),
}

impl CertificateNames {
    /// What `present` lacks; `None`: nothing. More names than wanted are fine (Kubernetes: `certSatisfiesTemplateLocked`).
    pub(crate) fn missing_from(&self, present: &Self) -> Option<MissingName> {
        if self.common_name != present.common_name {
            return Some(MissingName::CommonName);
        }
        if let Some(name) = self.organizations.difference(&present.organizations).next() {
            return Some(MissingName::Organization(name.clone()));
        }
        if let Some(name) = self.dns_names.difference(&present.dns_names).next() {
            return Some(MissingName::DnsName(name.clone()));
        }
        self.ip_addresses.difference(&present.ip_addresses).next().copied().map(MissingName::IpAddress)
    }
}

impl fmt::Display for MissingName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CommonName => f.write_str("it has another common name"),
            Self::Organization(name) => write!(f, "it lacks the organization {name:?}"),
            Self::DnsName(name) => write!(f, "it lacks the host name {name:?}"),
            Self::IpAddress(address) => write!(f, "it lacks the address {address}"),
        }
    }
}

/// The subject of a node's certificates. That of the client has nothing else.
pub fn client_names(node: &str) -> CertificateNames {
    CertificateNames {
        common_name: format!("system:node:{node}"),
        organizations: BTreeSet::from(["system:nodes".to_owned()]),
        ..CertificateNames::default()
    }
}

/// The serving certificate of a node with these addresses, which are names or IP addresses. `None` while there is no IP address
/// (Kubernetes: `newGetTemplateFn`).
pub fn serving_names<'a>(node: &str, addresses: impl IntoIterator<Item = &'a str>) -> Option<CertificateNames> {
    let mut names = client_names(node);
    for address in addresses {
        match address.parse() {
            Ok(ip) => names.ip_addresses.insert(ip),
            Err(_) if address.is_empty() => false,
            Err(_) => names.dns_names.insert(address.to_owned()),
        };
    }
    (!names.ip_addresses.is_empty()).then_some(names)
}
