//! The files that give a sandbox its name resolution: `resolv.conf` and `hosts`.

use std::net::IpAddr;

/// A value that would break the file's lines.
#[derive(Debug, thiserror::Error)]
#[error("{field} {value:?} of the DNS configuration contains white space or a control character")]
pub struct DnsFileError {
    /// `server`, `search` or `option`.
    pub field: &'static str,
    /// The refused value.
    pub value: String,
}

/// The DNS configuration of a pod, as CRI's `DNSConfig`.
#[derive(Clone, Copy, Debug, Default)]
pub struct ResolvConf<'a> {
    /// Addresses of name servers.
    pub servers: &'a [String],
    /// Search domains.
    pub searches: &'a [String],
    /// Options of the resolver.
    pub options: &'a [String],
}

impl ResolvConf<'_> {
    /// Nothing is configured: the sandbox gets a copy of the host's file.
    pub fn is_empty(&self) -> bool {
        self.servers.is_empty() && self.searches.is_empty() && self.options.is_empty()
    }

    /// The file, in containerd's order of lines (`parseDNSOptions`).
    pub fn render(&self) -> Result<String, DnsFileError> {
        check("server", self.servers)?;
        check("search", self.searches)?;
        check("option", self.options)?;
        let mut text = String::new();
        if !self.searches.is_empty() {
            text.push_str(&format!("search {}\n", self.searches.join(" ")));
        }
        for server in self.servers {
            text.push_str(&format!("nameserver {server}\n"));
        }
        if !self.options.is_empty() {
            text.push_str(&format!("options {}\n", self.options.join(" ")));
        }
        Ok(text)
    }
}

fn check(field: &'static str, values: &[String]) -> Result<(), DnsFileError> {
    let bad = |value: &&String| value.is_empty() || value.chars().any(|c| c.is_whitespace() || c.is_control());
    match values.iter().find(bad) {
        Some(value) => Err(DnsFileError { field, value: value.clone() }),
        None => Ok(()),
    }
}

/// A sandbox's `hosts` for callers that give containers none (the kubelet mounts its own over it).
pub fn hosts_file(hostname: &str, addresses: &[IpAddr]) -> Result<String, DnsFileError> {
    check("hostname", std::slice::from_ref(&hostname.to_owned()))?;
    let mut text = String::from("127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n");
    for address in addresses {
        text.push_str(&format!("{address}\t{hostname}\n"));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strings(values: &[&str]) -> Vec<String> {
        values.iter().map(|value| (*value).to_owned()).collect()
    }

    #[test]
    fn resolv_conf_has_the_lines_of_containerd() {
        let (servers, searches) = (strings(&["10.0.0.10", "fd00::a"]), strings(&["a.svc", "svc"]));
        let options = strings(&["ndots:5", "edns0"]);
        let conf = ResolvConf { servers: &servers, searches: &searches, options: &options };
        let text = conf.render().unwrap();
        assert_eq!(text, "search a.svc svc\nnameserver 10.0.0.10\nnameserver fd00::a\noptions ndots:5 edns0\n");
        assert!(ResolvConf::default().is_empty());
    }

    #[test]
    fn a_value_with_a_line_break_is_refused() {
        for bad in ["a\nnameserver 6.6.6.6", "a b", "", "a\0"] {
            let searches = strings(&[bad]);
            let conf = ResolvConf { searches: &searches, ..ResolvConf::default() };
            assert_eq!(conf.render().unwrap_err().value, bad);
        }
        assert!(hosts_file("web\n6.6.6.6 bank", &[]).is_err());
    }

    #[test]
    fn hosts_names_the_pods_addresses() {
        let text = hosts_file("web-0", &["10.0.0.2".parse().unwrap(), "fd00::2".parse().unwrap()]).unwrap();
        assert!(text.ends_with("10.0.0.2\tweb-0\nfd00::2\tweb-0\n"), "{text}");
    }
}
