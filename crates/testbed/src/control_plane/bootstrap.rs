//! Bootstrap tokens: with one a node requests its first certificate, as kubeadm does it.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::ControlPlane;

/// A token of a node that joins.
#[derive(Debug)]
pub struct BootstrapToken {
    /// The kubeconfig with it.
    pub kubeconfig: PathBuf,
    /// `id.secret`.
    pub token: String,
}

/// What happens to requests for certificates with a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenGroup {
    /// The controller manager approves them.
    Approved,
    /// They wait for an administrator.
    Manual,
}

impl BootstrapToken {
    /// The name of the user in requests.
    pub fn user(&self) -> String {
        format!("system:bootstrap:{}", self.token.split('.').next().unwrap_or_default())
    }
}

impl ControlPlane {
    /// A new token, and a kubeconfig `<name>-bootstrap` with it. Nodes may renew their certificates from then on.
    pub fn bootstrap_token(&self, name: &str, group: TokenGroup) -> Result<BootstrapToken> {
        const APPROVE: &str = "system:certificates.k8s.io:certificatesigningrequests";
        self.bind("testbed:bootstrap", "system:node-bootstrapper", "system:bootstrappers")?;
        self.bind("testbed:approve", &format!("{APPROVE}:nodeclient"), "system:bootstrappers:approved")?;
        self.bind("testbed:renew", &format!("{APPROVE}:selfnodeclient"), "system:nodes")?;
        let hash = name.bytes().fold(7_u64, |hash, byte| hash.wrapping_mul(31).wrapping_add(byte.into()));
        let (id, secret) =
            (format!("{:06x}", hash & 0xff_ffff), format!("{:016x}", hash.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
        let groups =
            if group == TokenGroup::Approved { "system:bootstrappers:approved" } else { "system:bootstrappers:manual" };
        let data = json!({"token-id": id, "token-secret": secret, "usage-bootstrap-authentication": "true",
            "auth-extra-groups": groups});
        let object = json!({"metadata": {"name": format!("bootstrap-token-{id}")}, "type": "bootstrap.kubernetes.io/token",
            "stringData": data});
        self.admin.create("/api/v1/namespaces/kube-system/secrets", &object)?;
        let token = format!("{id}.{secret}");
        let kubeconfig = self.kubeconfig_of(&format!("{name}-bootstrap"), &json!({"token": token}))?;
        Ok(BootstrapToken { kubeconfig, token })
    }

    /// Makes a token invalid.
    pub fn revoke(&self, token: &BootstrapToken) -> Result<()> {
        let id = token.token.split('.').next().unwrap_or_default();
        self.admin.delete(&format!("/api/v1/namespaces/kube-system/secrets/bootstrap-token-{id}"), None).map(|_| ())
    }

    /// The requests for certificates of a user, the oldest first.
    pub fn signing_requests(&self, user: &str) -> Result<Vec<Value>> {
        let list = self.admin.get("/apis/certificates.k8s.io/v1/certificatesigningrequests")?;
        let all = list["items"].as_array().cloned().unwrap_or_default();
        let mut own: Vec<Value> = all.into_iter().filter(|request| request["spec"]["username"] == user).collect();
        own.sort_by_key(|request| request["metadata"]["creationTimestamp"].as_str().unwrap_or_default().to_owned());
        Ok(own)
    }

    fn bind(&self, name: &str, role: &str, group: &str) -> Result<()> {
        let api = "rbac.authorization.k8s.io";
        let binding = json!({"metadata": {"name": name},
            "roleRef": {"apiGroup": api, "kind": "ClusterRole", "name": role},
            "subjects": [{"apiGroup": api, "kind": "Group", "name": group}]});
        let path = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
        let response = self.admin.request("POST", path, Some(&binding))?;
        ensure!(matches!(response.status, 201 | 409), "{name}: {} {}", response.status, response.body);
        Ok(())
    }
}
