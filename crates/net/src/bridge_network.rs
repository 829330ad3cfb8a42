//! The builtin network: a bridge, addresses of the node's range, host ports by nf_tables.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard};

use ipnet::IpNet;
use podwright_tasks::ThreadEnd;
use rustix::io::Errno;
use tracing::{info, warn};

use crate::bridge;
use crate::bridge_settings::{BridgeSettings, PodRanges, validate_ranges};
use crate::collector::{Collector, Released};
use crate::ipam::Ipam;
use crate::model::{
    AttachRequest, Attachment, Network, NetworkError, OwnedPod, PortForward, ReconcileSummary, ReleaseRequest,
    TransportProtocol,
};
use crate::netlink::conntrack;
use crate::netlink::nft::MapElement;
use crate::netlink::route::{Link, RouteSocket};
use crate::netns::{self, NetnsPins};
use crate::ports;
use crate::table::{self, NftTable};

/// A pod between its add and the end of its release.
#[derive(Debug, Default)]
struct ActivePod {
    elements: BTreeSet<MapElement>,
}

/// State shared with the collector's thread.
#[derive(Debug)]
struct Shared {
    ipam: Ipam,
    /// Pods of this process, by sandbox id: a sweep never removes them, even if they are missing from its list. Held while the
    /// table is changed, so that it and the table agree.
    active: Mutex<BTreeMap<String, ActivePod>>,
}

impl Shared {
    fn active(&self) -> MutexGuard<'_, BTreeMap<String, ActivePod>> {
        self.active.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// The builtin network.
#[derive(Debug)]
pub struct BridgeNetwork {
    settings: BridgeSettings,
    ranges: PodRanges,
    pins: Arc<NetnsPins>,
    shared: Arc<Shared>,
    collector: Collector,
}

impl BridgeNetwork {
    /// Checks the settings; the kernel is first changed by [`Network::reconcile`]. The node is the network namespace of the calling thread.
    pub fn new(settings: BridgeSettings, pins: Arc<NetnsPins>) -> Result<Self, NetworkError> {
        settings.validate()?;
        let ranges = PodRanges::open(&settings.ranges, settings.ranges_file.clone());
        let shared = Arc::new(Shared { ipam: Ipam::new(settings.leases.clone()), active: Mutex::default() });
        let (freed, left) = (Arc::clone(&shared), Arc::clone(&shared));
        let free = move |sandbox_id: &str| {
            freed.ipam.release(sandbox_id)?;
            freed.active().remove(sandbox_id);
            Ok(())
        };
        // No longer active, so that a reconcile deletes its link and frees its addresses.
        let give_up = move |sandbox_id: &str| drop(left.active().remove(sandbox_id));
        let collector = Collector::start(Box::new(free), Box::new(give_up));
        let collector = collector.map_err(|e| NetworkError::NotReady(format!("no thread for the collector: {e}")))?;
        Ok(BridgeNetwork { settings, ranges, pins, shared, collector })
    }

    /// The end of the thread that frees the addresses of released pods, to be supervised. `None`: it was taken.
    pub fn take_collector_end(&mut self) -> Option<ThreadEnd> {
        self.collector.take_end()
    }

    /// The table with the present ranges.
    fn table(&self) -> NftTable {
        let (name, bridge) = (self.settings.table.clone(), self.settings.bridge.clone());
        NftTable { name, bridge, ranges: self.ranges.get() }
    }

    fn known_ranges(&self) -> Result<Vec<IpNet>, NetworkError> {
        let ranges = self.ranges.get();
        if ranges.is_empty() {
            return Err(NetworkError::NotReady("the pod CIDR of this node is not known yet".to_owned()));
        }
        Ok(ranges)
    }

    fn ensure_bridge(&self) -> Result<Link, NetworkError> {
        bridge::ensure(&self.settings.bridge, &self.known_ranges()?, self.settings.mtu, &self.owner())
    }

    fn ready_bridge(&self) -> Result<Link, NetworkError> {
        match RouteSocket::open()?.link(&self.settings.bridge)? {
            Some(link) if link.up && !bridge::is_foreign(&link, &self.owner()) => Ok(link),
            _ => self.ensure_bridge(),
        }
    }

    fn owner(&self) -> String {
        bridge::owner(&self.settings.leases)
    }

    /// Makes a sandbox active before its resources are created, so that no sweep removes them. A sandbox that is already
    /// connected is refused: undoing the second add would remove the resources of the first.
    fn begin(&self, sandbox_id: &str) -> Result<(), NetworkError> {
        let link = RouteSocket::open()?.link(&bridge::veth_name(sandbox_id))?;
        let mut active = self.shared.active();
        if link.is_some() || active.contains_key(sandbox_id) {
            return Err(NetworkError::Invalid(format!("sandbox {sandbox_id} is connected already")));
        }
        active.insert(sandbox_id.to_owned(), ActivePod::default());
        Ok(())
    }

    fn connect(&self, request: &AttachRequest<'_>) -> Result<Attachment, NetworkError> {
        let netns = netns::open(request.netns)
            .map_err(|source| NetworkError::Netns { path: request.netns.to_owned(), source })?;
        let bridge = self.ready_bridge()?;
        let ranges = &self.known_ranges()?;
        let addresses = self.shared.ipam.reserve(&request.pod.sandbox_id, ranges)?;
        for port in request.ports {
            ports::probe(port, &addresses)?;
        }
        let id = &request.pod.sandbox_id;
        bridge::attach(&bridge, id, netns.as_fd(), &addresses, ranges)?;
        let attachment = Attachment { pod: request.pod.clone(), addresses, ports: request.ports.to_vec() };
        self.open_ports(&attachment)?;
        Ok(attachment)
    }

    /// Maps the pod's host ports, all or none.
    fn open_ports(&self, attachment: &Attachment) -> Result<(), NetworkError> {
        let elements = table::elements_of(attachment);
        if elements.is_empty() {
            return Ok(());
        }
        {
            let mut active = self.shared.active();
            let present = match self.table().elements() {
                // The table was removed: it is loaded again with the ports of all active pods.
                Err(e) if e.errno() == Some(Errno::NOENT) => {
                    self.table().load(&all_elements(&active))?;
                    self.table().elements()?
                }
                other => other?,
            };
            for element in &elements {
                if let Some(other) = present.iter().find(|other| table::overlap(element, other)) {
                    return Err(taken(attachment, element, &other.comment));
                }
            }
            match self.table().add_elements(&elements) {
                Err(e) if e.errno() == Some(Errno::EXIST) => {
                    return Err(taken(attachment, &elements[0], "another program"));
                }
                other => other?,
            }
            active.entry(attachment.pod.sandbox_id.clone()).or_default().elements = elements.into_iter().collect();
        }
        forget_udp_flows(&attachment.ports);
        Ok(())
    }

    fn close_ports(&self, request: &ReleaseRequest<'_>) -> Result<(), NetworkError> {
        let id = &request.pod.sandbox_id;
        let mut active = self.shared.active();
        let pod = active.entry(id.clone()).or_default();
        let mut elements: Vec<MapElement> = pod.elements.iter().cloned().collect();
        elements.extend(request.attachment.into_iter().flat_map(table::elements_of));
        if elements.is_empty() && request.attachment.is_none() {
            let addresses = self.shared.ipam.addresses_of(id)?;
            elements = self.elements_to(&addresses)?;
        }
        self.table().delete_elements(&elements)?;
        pod.elements.clear();
        Ok(())
    }

    /// The elements that lead to one of the addresses; none if there is no table.
    fn elements_to(&self, addresses: &[IpAddr]) -> Result<Vec<MapElement>, NetworkError> {
        let present = match self.table().elements() {
            Err(e) if e.errno() == Some(Errno::NOENT) => vec![],
            other => other?,
        };
        let leads_there = |element: &MapElement| table::target(element).is_some_and(|to| addresses.contains(&to));
        Ok(present.into_iter().filter(leads_there).collect())
    }

    /// Removes everything that [`BridgeNetwork::connect`] may have created, at once: the namespace still exists and would keep
    /// the link.
    fn undo(&self, request: &AttachRequest<'_>) -> Result<(), NetworkError> {
        let id = &request.pod.sandbox_id;
        let mut route = RouteSocket::open()?;
        if let Some(link) = route.link(&bridge::veth_name(id))? {
            route.delete_link(&link)?;
        }
        self.shared.ipam.release(id)?;
        self.shared.active().remove(id);
        Ok(())
    }

    /// Loads the table if it is missing or differs; otherwise removes the elements that no pod owns. Elements of owned pods are
    /// added.
    fn reconcile_table(&self, owned: &[OwnedPod], summary: &mut ReconcileSummary) -> Result<(), NetworkError> {
        let active = self.shared.active();
        let mut wanted = all_elements(&active);
        // The state of an active pod is newer than the list: the pod may have been released meanwhile.
        let others = owned.iter().filter(|pod| !active.contains_key(&pod.sandbox_id));
        wanted.extend(others.filter_map(|pod| pod.attachment.as_ref()).flat_map(table::elements_of));
        if !self.table().is_loaded()? {
            self.table().load(&wanted)?;
            summary.table_restored = true;
            return Ok(());
        }
        let present: BTreeSet<MapElement> = match self.table().elements() {
            Err(e) if e.errno() == Some(Errno::NOENT) => {
                self.table().load(&wanted)?;
                summary.table_restored = true;
                return Ok(());
            }
            other => other?.into_iter().collect(),
        };
        wanted.extend(self.elements_of_unknown(owned, &active, &present)?);
        if wanted.difference(&present).next().is_some() {
            self.table().load(&wanted)?;
            summary.table_restored = true;
            return Ok(());
        }
        let left: Vec<MapElement> = present.difference(&wanted).cloned().collect();
        self.table().delete_elements(&left)?;
        summary.ports_removed = left.len();
        Ok(())
    }

    /// Elements that lead to a pod whose ports are not known: they stay as they are.
    fn elements_of_unknown(
        &self,
        owned: &[OwnedPod],
        active: &BTreeMap<String, ActivePod>,
        present: &BTreeSet<MapElement>,
    ) -> Result<Vec<MapElement>, NetworkError> {
        let unknown = owned.iter().filter(|pod| pod.attachment.is_none() && !active.contains_key(&pod.sandbox_id));
        let mut addresses = vec![];
        for pod in unknown {
            addresses.extend(self.shared.ipam.addresses_of(&pod.sandbox_id)?);
        }
        let leads_there = |element: &&MapElement| table::target(element).is_some_and(|to| addresses.contains(&to));
        Ok(present.iter().filter(leads_there).cloned().collect())
    }

    /// Deletes links that no pod owns and puts the others back on the bridge.
    fn reconcile_links(
        &self,
        bridge: &Link,
        owned: &BTreeSet<&str>,
        summary: &mut ReconcileSummary,
    ) -> Result<(), NetworkError> {
        let mut route = RouteSocket::open()?;
        // Links first, then the active pods: one that is added meanwhile is in the second list.
        let links = route.links()?;
        let mut names: BTreeSet<String> = owned.iter().map(|id| bridge::veth_name(id)).collect();
        names.extend(self.shared.active().keys().map(|id| bridge::veth_name(id)));
        for link in links {
            if names.contains(&link.name) {
                if link.master != Some(bridge.index) {
                    route.set_master(&link, bridge.index)?;
                    route.set_port_up(&link)?;
                }
            } else if link.master == Some(bridge.index) && bridge::is_veth_name(&link.name) {
                route.delete_link(&link)?;
                summary.links_removed += 1;
            }
        }
        Ok(())
    }

    fn reconcile_leases(&self, owned: &BTreeSet<&str>, summary: &mut ReconcileSummary) -> Result<(), NetworkError> {
        let leases = self.shared.ipam.leases()?;
        let owners: BTreeSet<&str> = leases.iter().map(|lease| lease.owner.as_str()).collect();
        for owner in owners {
            if !owned.contains(owner) && !self.shared.active().contains_key(owner) {
                summary.leases_removed += self.shared.ipam.release(owner)?;
            }
        }
        Ok(())
    }
}

impl Network for BridgeNetwork {
    fn add(&self, request: &AttachRequest<'_>) -> Result<Attachment, NetworkError> {
        ports::validate(request.ports)?;
        if request.pod.sandbox_id.is_empty() {
            return Err(NetworkError::Invalid("a sandbox without an id".to_owned()));
        }
        self.begin(&request.pod.sandbox_id)?;
        self.connect(request).inspect_err(|error| {
            info!(pod = %request.pod, sandbox_id = request.pod.sandbox_id, %error, "network setup failed");
            if let Err(error) = self.undo(request) {
                warn!(pod = %request.pod, sandbox_id = request.pod.sandbox_id, %error, "undo of the network setup failed");
            }
        })
    }

    fn release(&self, request: &ReleaseRequest<'_>) -> Result<(), NetworkError> {
        self.close_ports(request)?;
        forget_udp_flows(request.attachment.map_or(&[], |attachment| &attachment.ports));
        let sandbox_id = request.pod.sandbox_id.clone();
        if let Some(path) = request.netns {
            let unpinned = self.pins.unpin(&sandbox_id);
            unpinned.map_err(|source| NetworkError::Netns { path: path.to_owned(), source })?;
        }
        let link = bridge::veth_name(&sandbox_id);
        self.collector.collect(Released { sandbox_id, link });
        Ok(())
    }

    fn status(&self) -> Result<(), NetworkError> {
        self.known_ranges()?;
        let bridge = &self.settings.bridge;
        match RouteSocket::open()?.link(bridge)? {
            Some(link) if link.up && link.bridge => {}
            Some(_) => return Err(NetworkError::NotReady(format!("interface {bridge} is down or no bridge"))),
            None => return Err(NetworkError::NotReady(format!("there is no bridge {bridge}"))),
        }
        self.table().check_owner()?;
        match self.table().is_loaded()? {
            true => Ok(()),
            false => Err(NetworkError::NotReady(format!("table inet {} is not loaded", self.settings.table))),
        }
    }

    fn reconcile(&self, owned: &[OwnedPod]) -> Result<ReconcileSummary, NetworkError> {
        let mut summary = ReconcileSummary::default();
        // Without a range there is no pod, and nothing to restore.
        if self.ranges.get().is_empty() {
            return Ok(summary);
        }
        let ids: BTreeSet<&str> = owned.iter().map(|pod| pod.sandbox_id.as_str()).collect();
        self.table().check_owner()?;
        // A table for another bridge may be that of another engine.
        if let Some(other) = self.table().loaded_bridge()?.filter(|bridge| *bridge != self.settings.bridge) {
            bridge::check_named(&other, &self.owner())?;
        }
        let bridge = self.ensure_bridge()?;
        self.reconcile_table(owned, &mut summary)?;
        self.reconcile_links(&bridge, &ids, &mut summary)?;
        // Addresses last: the links that had them are gone.
        self.reconcile_leases(&ids, &mut summary)?;
        let swept = self.pins.sweep(&ids);
        summary.netns_removed = swept.map_err(|source| NetworkError::Netns { path: self.pins.path(""), source })?;
        Ok(summary)
    }

    fn remove_if_unused(&self) -> Result<bool, NetworkError> {
        let active = self.shared.active();
        if !active.is_empty() {
            return Ok(false);
        }
        self.remove_bridge()
    }

    fn set_ranges(&self, ranges: &[IpNet]) -> Result<(), NetworkError> {
        let ranges: Vec<IpNet> = ranges.iter().map(IpNet::trunc).collect();
        validate_ranges(&ranges)?;
        // Held: no pod is connected meanwhile.
        let active = self.shared.active();
        let before = self.ranges.get();
        if before == ranges {
            return Ok(());
        }
        let pods: BTreeSet<String> = self.shared.ipam.leases()?.into_iter().map(|lease| lease.owner).collect();
        let is_used = !pods.is_empty() || !active.is_empty();
        // The gateway of the former range goes with the bridge.
        if is_used || !self.remove_bridge()? {
            return Err(NetworkError::RangeInUse { before, ranges, pods: pods.len().max(active.len()).max(1) });
        }
        self.ranges.replace(&ranges).map_err(|source| NetworkError::Ranges { source })?;
        info!(former = ?before, pod_cidr = ?ranges, "ranges of pod addresses changed");
        Ok(())
    }
}

impl BridgeNetwork {
    /// Removes bridge and table, unless the bridge has a port. What another program made stays.
    fn remove_bridge(&self) -> Result<bool, NetworkError> {
        let mut route = RouteSocket::open()?;
        let Some(bridge) = route.link(&self.settings.bridge)? else {
            return Ok(true);
        };
        if route.links()?.iter().any(|link| link.master == Some(bridge.index)) {
            return Ok(false);
        }
        self.table().delete()?;
        if bridge.alias == self.owner() {
            route.delete_link(&bridge)?;
        }
        Ok(true)
    }
}

fn all_elements(active: &BTreeMap<String, ActivePod>) -> BTreeSet<MapElement> {
    active.values().flat_map(|pod| pod.elements.iter().cloned()).collect()
}

fn taken(attachment: &Attachment, element: &MapElement, owner: &str) -> NetworkError {
    let of_element = |port: &&PortForward| {
        let single = Attachment { ports: vec![(*port).clone()], ..attachment.clone() };
        table::elements_of(&single).contains(element)
    };
    let port = attachment.ports.iter().find(of_element).map(ports::describe).unwrap_or_default();
    NetworkError::PortTaken { port, owner: owner.to_owned() }
}

/// Deletes the UDP flows to the ports. A failure leaves old clients with their old target until they pause; it must not fail the pod.
fn forget_udp_flows(ports: &[PortForward]) {
    let udp: Vec<(Option<IpAddr>, u16)> = ports
        .iter()
        .filter(|port| port.protocol == TransportProtocol::Udp)
        .map(|port| (port.host_ip.filter(|ip| !ip.is_unspecified()), port.host_port))
        .collect();
    if udp.is_empty() {
        return;
    }
    if let Err(error) = conntrack::delete_udp_flows(&udp) {
        warn!(%error, "deletion of conntrack entries failed");
    }
}
