//! Metrics of the interfaces of a pod.

use podwright_net::InterfaceCounters;

use super::{Family, Point};

type Interfaces = Vec<InterfaceCounters>;

const fn traffic(name: &'static str, help: &'static str, points: fn(&Interfaces) -> Vec<Point>) -> Family<Interfaces> {
    Family::counter(name, help, points).labelled(&["interface"])
}

fn each(interfaces: &Interfaces, value: fn(&InterfaceCounters) -> u64) -> Vec<Point> {
    let point = |counters: &InterfaceCounters| Point {
        labels: vec![counters.name.clone()],
        value: value(counters),
        measured_at_ns: 0,
    };
    interfaces.iter().map(point).collect()
}

pub(super) const FAMILIES: &[Family<Interfaces>] = &[
    traffic("container_network_receive_bytes_total", "Bytes received.", |all| each(all, |i| i.rx_bytes)),
    traffic("container_network_receive_packets_total", "Packets received.", |all| each(all, |i| i.rx_packets)),
    traffic("container_network_receive_packets_dropped_total", "Received packets that were dropped.", |all| {
        each(all, |i| i.rx_dropped)
    }),
    traffic("container_network_receive_errors_total", "Packets received damaged.", |all| each(all, |i| i.rx_errors)),
    traffic("container_network_transmit_bytes_total", "Bytes sent.", |all| each(all, |i| i.tx_bytes)),
    traffic("container_network_transmit_packets_total", "Packets sent.", |all| each(all, |i| i.tx_packets)),
    traffic("container_network_transmit_packets_dropped_total", "Packets dropped before they were sent.", |all| {
        each(all, |i| i.tx_dropped)
    }),
    traffic("container_network_transmit_errors_total", "Packets that could not be sent.", |all| {
        each(all, |i| i.tx_errors)
    }),
];
