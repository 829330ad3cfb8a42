//! The environment variables of services: Kubernetes' own, and those of Docker links.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Service, ServicePort};

/// The variables of all services with a cluster IP (Go kubelet: `envvars.FromServices`).
pub(super) fn variables(services: &[Arc<Service>]) -> Vec<(String, String)> {
    services.iter().flat_map(|service| of_service(service)).collect()
}

fn of_service(service: &Service) -> Vec<(String, String)> {
    let Some(spec) = &service.spec else { return Vec::new() };
    let address = spec.cluster_ip.as_deref().filter(|ip| !ip.is_empty() && *ip != "None");
    let ports = spec.ports.as_deref().unwrap_or_default();
    let (Some(address), Some(first)) = (address, ports.first()) else { return Vec::new() };
    let prefix = variable_name(service.metadata.name.as_deref().unwrap_or_default());
    let mut all = vec![
        (format!("{prefix}_SERVICE_HOST"), address.to_owned()),
        (format!("{prefix}_SERVICE_PORT"), first.port.to_string()),
    ];
    for port in ports {
        if let Some(name) = port.name.as_deref().filter(|name| !name.is_empty()) {
            all.push((format!("{prefix}_SERVICE_PORT_{}", variable_name(name)), port.port.to_string()));
        }
    }
    all.push((format!("{prefix}_PORT"), url(address, first)));
    all.extend(ports.iter().flat_map(|port| link(&prefix, address, port)));
    all
}

fn link(prefix: &str, address: &str, port: &ServicePort) -> [(String, String); 4] {
    let base = format!("{prefix}_PORT_{}_{}", port.port, protocol(port).to_uppercase());
    [
        (base.clone(), url(address, port)),
        (format!("{base}_PROTO"), protocol(port)),
        (format!("{base}_PORT"), port.port.to_string()),
        (format!("{base}_ADDR"), address.to_owned()),
    ]
}

fn url(address: &str, port: &ServicePort) -> String {
    let host = if address.contains(':') { format!("[{address}]") } else { address.to_owned() };
    format!("{}://{host}:{}", protocol(port), port.port)
}

fn protocol(port: &ServicePort) -> String {
    port.protocol.as_deref().filter(|protocol| !protocol.is_empty()).unwrap_or("TCP").to_lowercase()
}

fn variable_name(name: &str) -> String {
    name.replace('-', "_").to_uppercase()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn of(spec: serde_json::Value) -> Vec<String> {
        let service = serde_json::from_value(json!({"metadata": {"name": "my-db"}, "spec": spec})).unwrap();
        variables(&[Arc::new(service)]).into_iter().map(|(key, value)| format!("{key}={value}")).collect()
    }

    #[test]
    fn a_service_has_the_variables_of_kubernetes_and_of_docker_links() {
        let spec = json!({"clusterIP": "10.0.0.7", "ports": [
            {"name": "sql", "port": 5432}, {"name": "the-stats", "port": 9100, "protocol": "UDP"}]});
        assert_eq!(
            of(spec),
            [
                "MY_DB_SERVICE_HOST=10.0.0.7",
                "MY_DB_SERVICE_PORT=5432",
                "MY_DB_SERVICE_PORT_SQL=5432",
                "MY_DB_SERVICE_PORT_THE_STATS=9100",
                "MY_DB_PORT=tcp://10.0.0.7:5432",
                "MY_DB_PORT_5432_TCP=tcp://10.0.0.7:5432",
                "MY_DB_PORT_5432_TCP_PROTO=tcp",
                "MY_DB_PORT_5432_TCP_PORT=5432",
                "MY_DB_PORT_5432_TCP_ADDR=10.0.0.7",
                "MY_DB_PORT_9100_UDP=udp://10.0.0.7:9100",
                "MY_DB_PORT_9100_UDP_PROTO=udp",
                "MY_DB_PORT_9100_UDP_PORT=9100",
                "MY_DB_PORT_9100_UDP_ADDR=10.0.0.7",
            ]
        );
    }

    #[test]
    fn a_service_without_an_address_or_port_has_no_variables() {
        for spec in [
            json!({"clusterIP": "None", "ports": [{"port": 1}]}),
            json!({"ports": [{"port": 1}]}),
            json!({"clusterIP": "10.0.0.7"}),
        ] {
            assert!(of(spec).is_empty());
        }
        let six = of(json!({"clusterIP": "fd00::1", "ports": [{"port": 80}]}));
        assert!(six.contains(&"MY_DB_PORT=tcp://[fd00::1]:80".into()), "{six:?}");
    }
}
