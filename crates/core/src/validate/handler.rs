//! Probes and hooks: exactly one handler each, and valid numbers.

use k8s_openapi::api::core::v1::{
    ExecAction, HTTPGetAction, Lifecycle, LifecycleHandler, PodSpec, Probe, TCPSocketAction,
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::{FieldErrors, names, quoted};

pub(super) fn check_probe(probe: &Probe, readiness: bool, at: &str, errors: &mut FieldErrors) {
    let given = [probe.exec.is_some(), probe.http_get.is_some(), probe.tcp_socket.is_some(), probe.grpc.is_some()];
    exactly_one(&given, "exec, httpGet, tcpSocket or grpc", at, errors);
    actions(probe.exec.as_ref(), probe.http_get.as_ref(), probe.tcp_socket.as_ref(), at, errors);
    if let Some(grpc) = &probe.grpc {
        names::port_number(grpc.port, format!("{at}.grpc.port"), errors);
    }
    for (number, field) in [
        (probe.initial_delay_seconds, "initialDelaySeconds"),
        (probe.timeout_seconds, "timeoutSeconds"),
        (probe.period_seconds, "periodSeconds"),
        (probe.success_threshold, "successThreshold"),
        (probe.failure_threshold, "failureThreshold"),
    ] {
        errors.at_least(number.map(i64::from), 0, format!("{at}.{field}"));
    }
    if readiness {
        if probe.termination_grace_period_seconds.is_some() {
            errors.add(
                format!("{at}.terminationGracePeriodSeconds"),
                "must not be given: readiness never ends a container",
            );
        }
    } else {
        errors.at_least(probe.termination_grace_period_seconds, 1, format!("{at}.terminationGracePeriodSeconds"));
        if probe.success_threshold.is_some_and(|threshold| threshold > 1) {
            errors.add(format!("{at}.successThreshold"), "must be 1");
        }
    }
}

pub(super) fn check_lifecycle(lifecycle: &Lifecycle, spec: &PodSpec, at: &str, errors: &mut FieldErrors) {
    let grace = spec.termination_grace_period_seconds.unwrap_or(30);
    for (handler, field) in [(&lifecycle.post_start, "postStart"), (&lifecycle.pre_stop, "preStop")] {
        if let Some(handler) = handler {
            check_handler(handler, grace, &format!("{at}.{field}"), errors);
        }
    }
    if let Some(signal) = lifecycle.stop_signal.as_deref() {
        let at = format!("{at}.stopSignal");
        if spec.os.is_none() {
            errors.add(at, "needs spec.os.name: linux");
        } else if !signal.strip_prefix("SIG").is_some_and(is_signal) {
            errors.add(at, format!("{} must be the name of a signal, such as SIGTERM", quoted(signal)));
        }
    }
}

fn check_handler(handler: &LifecycleHandler, grace: i64, at: &str, errors: &mut FieldErrors) {
    let given =
        [handler.exec.is_some(), handler.http_get.is_some(), handler.tcp_socket.is_some(), handler.sleep.is_some()];
    exactly_one(&given, "exec, httpGet or sleep", at, errors);
    actions(handler.exec.as_ref(), handler.http_get.as_ref(), handler.tcp_socket.as_ref(), at, errors);
    if let Some(sleep) = handler.sleep.as_ref().filter(|sleep| sleep.seconds < 0 || sleep.seconds > grace) {
        let seconds = sleep.seconds;
        errors.add(
            format!("{at}.sleep.seconds"),
            format!("{seconds} must be between 0 and terminationGracePeriodSeconds ({grace})"),
        );
    }
}

fn exactly_one(given: &[bool], names: &str, at: &str, errors: &mut FieldErrors) {
    match given.iter().filter(|given| **given).count() {
        1 => {}
        0 => errors.add(at, format!("must have one of {names}")),
        _ => errors.add(at, format!("must have only one of {names}")),
    }
}

fn actions(
    exec: Option<&ExecAction>,
    http: Option<&HTTPGetAction>,
    tcp: Option<&TCPSocketAction>,
    at: &str,
    errors: &mut FieldErrors,
) {
    if exec.is_some_and(|exec| exec.command.as_ref().is_none_or(Vec::is_empty)) {
        errors.add(format!("{at}.exec.command"), "must have at least the program's name");
    }
    if let Some(http) = http {
        port(&http.port, &format!("{at}.httpGet.port"), errors);
        errors.one_of(http.scheme.as_deref(), &["HTTP", "HTTPS"], format!("{at}.httpGet.scheme"));
        for (i, header) in http.http_headers.iter().flatten().enumerate() {
            let good = |b: u8| b.is_ascii_alphanumeric() || b == b'-';
            if header.name.is_empty() || !header.name.bytes().all(good) {
                errors.add(
                    format!("{at}.httpGet.httpHeaders[{i}].name"),
                    format!("{} must be letters, digits and '-', such as X-Token", quoted(&header.name)),
                );
            }
        }
    }
    if let Some(tcp) = tcp {
        port(&tcp.port, &format!("{at}.tcpSocket.port"), errors);
    }
}

fn port(port: &IntOrString, at: &str, errors: &mut FieldErrors) {
    match port {
        IntOrString::Int(number) => names::port_number(*number, at, errors),
        IntOrString::String(name) => names::port_name(name, at, errors),
    }
}

fn is_signal(name: &str) -> bool {
    const NAMES: [&str; 31] = [
        "ABRT", "ALRM", "BUS", "CHLD", "CLD", "CONT", "FPE", "HUP", "ILL", "INT", "IO", "IOT", "KILL", "PIPE", "POLL",
        "PROF", "PWR", "QUIT", "SEGV", "STKFLT", "STOP", "SYS", "TERM", "TRAP", "TSTP", "TTIN", "TTOU", "URG", "USR1",
        "USR2", "VTALRM",
    ];
    let real_time = |prefix: &str, sign: char, most: u8| {
        let Some(offset) = name.strip_prefix(prefix) else { return false };
        let number = offset.strip_prefix(sign).unwrap_or_default();
        let plain = number.bytes().all(|b| b.is_ascii_digit());
        offset.is_empty() || plain && number.parse::<u8>().is_ok_and(|number| (1..=most).contains(&number))
    };
    NAMES.contains(&name)
        || matches!(name, "WINCH" | "XCPU" | "XFSZ")
        || real_time("RTMIN", '+', 15)
        || real_time("RTMAX", '-', 14)
}
