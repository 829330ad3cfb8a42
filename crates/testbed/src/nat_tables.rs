//! The nf_tables tables `ip nat` and `ip6 nat`, which all networks of a host share. `iptables`, which the portmap plugin runs, creates
//! them with their chains and never deletes them.
//!
//! ```text
//! /tmp/pw/nat-tables         the tables and their chains before the first instance with plugins
//! /tmp/pw/nat-tables.lock    held while it is written, and while they are removed
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::Path;

use anyhow::{Context, Result};
use rustix::fs::{FlockOperation, flock};
use serde_json::Value;

use crate::command::{output_of, run};
use crate::network_state::nft;

const FAMILIES: [&str; 2] = ["ip", "ip6"];
const TABLE: &str = "nat";
/// The chain of one pod in the portmap plugin.
const POD_CHAIN: &str = "CNI-DN-";

/// The names of chains by family; a family without the table is absent.
type Chains = BTreeMap<String, BTreeSet<String>>;

/// Saves which tables and chains exist, before the first instance with plugins. `base`: the directory of all instances.
pub(crate) fn save_nat_tables(base: &Path) -> Result<()> {
    let _lock = lock(base)?;
    let file = base.join(SAVED);
    if file.exists() {
        return Ok(());
    }
    let mut chains = Chains::new();
    for family in FAMILIES {
        if let Some(table) = NatTable::list(family)? {
            chains.insert(family.to_owned(), table.chains);
        }
    }
    Ok(fs::write(file, serde_json::to_vec(&chains)?)?)
}

/// Removes the tables and the chains of pods that instances have added, unless `in_use`: another instance exists. What has rules stays.
pub(crate) fn restore_nat_tables(base: &Path, in_use: impl FnOnce() -> bool) {
    let restored = lock(base).and_then(|_lock| {
        let Ok(saved) = fs::read(base.join(SAVED)) else { return Ok(()) };
        if in_use() {
            return Ok(());
        }
        let before: Chains = serde_json::from_slice(&saved).context(SAVED)?;
        FAMILIES.into_iter().try_for_each(|family| restore(family, before.get(family)))?;
        Ok(fs::remove_file(base.join(SAVED))?)
    });
    if let Err(error) = restored {
        eprintln!("testbed: restore the tables {TABLE}: {error:#}");
    }
}

fn restore(family: &str, before: Option<&BTreeSet<String>>) -> Result<()> {
    let Some(table) = NatTable::list(family)? else { return Ok(()) };
    match before {
        None if !table.has_rules() => run(nft()?.args(["delete", "table", family, TABLE])).map(drop),
        before => {
            let is_new = |chain: &&String| before.is_none_or(|before| !before.contains(*chain));
            for chain in table.unused_pod_chains().filter(is_new) {
                run(nft()?.args(["delete", "chain", family, TABLE, chain]))?;
            }
            Ok(())
        }
    }
}

/// A table as `nft` lists it.
#[derive(Debug, Default, PartialEq)]
struct NatTable {
    chains: BTreeSet<String>,
    /// Chains with rules, and chains that rules jump to.
    used: BTreeSet<String>,
}

impl NatTable {
    /// `None`: there is no such table.
    fn list(family: &str) -> Result<Option<Self>> {
        let listed = output_of(nft()?.args(["-j", "list", "table", family, TABLE]))?;
        if !listed.status.success() {
            return Ok(None);
        }
        Self::parse(&serde_json::from_slice(&listed.stdout).context("nft prints JSON")?).map(Some)
    }

    fn parse(listed: &Value) -> Result<Self> {
        let mut table = Self::default();
        for object in listed["nftables"].as_array().context("a list of objects")? {
            let text = |value: &Value| value.as_str().map(str::to_owned);
            table.chains.extend(text(&object["chain"]["name"]));
            table.used.extend(text(&object["rule"]["chain"]));
            let expressions = object["rule"]["expr"].as_array().into_iter().flatten();
            table.used.extend(expressions.flat_map(|e| [&e["jump"]["target"], &e["goto"]["target"]]).filter_map(text));
        }
        Ok(table)
    }

    fn has_rules(&self) -> bool {
        !self.used.is_empty()
    }

    fn unused_pod_chains(&self) -> impl Iterator<Item = &String> {
        self.chains.difference(&self.used).filter(|chain| chain.starts_with(POD_CHAIN))
    }
}

fn lock(base: &Path) -> Result<File> {
    let file = File::create(base.join("nat-tables.lock"))?;
    flock(&file, FlockOperation::LockExclusive)?;
    Ok(file)
}

const SAVED: &str = "nat-tables";

#[cfg(test)]
mod tests {
    use std::process::Command;

    use serde_json::json;

    use super::*;

    #[test]
    fn what_instances_added_is_removed_and_the_rest_stays() {
        let own = ["--exact", "nat_tables::tests::restores_in_a_network_of_its_own", "--ignored"];
        let this = std::env::current_exe().expect("a program");
        run(Command::new("unshare").arg("--net").arg(this).args(own)).expect("it passes in a network namespace");
    }

    #[test]
    #[ignore = "changes the tables of the host; the test above runs it in a network namespace"]
    fn restores_in_a_network_of_its_own() {
        let base = std::env::temp_dir().join(format!("pw-nat-{}", std::process::id()));
        fs::create_dir_all(&base).expect("made");
        let add = |line: &str| drop(run(nft().expect("nft").arg("add").args(line.split(' '))).expect("added"));
        let chains = |family| NatTable::list(family).expect("listed").map(|table| Vec::from_iter(table.chains));
        add("table ip6 nat");
        add("chain ip6 nat CNI-DN-before");
        save_nat_tables(&base).expect("saved");
        for line in ["table ip nat", "chain ip nat CNI-DN-a", "chain ip6 nat CNI-DN-a", "chain ip6 nat OTHER"] {
            add(line);
        }
        restore_nat_tables(&base, || true);
        assert_eq!(chains("ip"), Some(vec!["CNI-DN-a".to_owned()]), "another instance may use it");
        restore_nat_tables(&base, || false);
        assert_eq!(chains("ip"), None);
        assert_eq!(chains("ip6"), Some(vec!["CNI-DN-before".to_owned(), "OTHER".to_owned()]));

        save_nat_tables(&base).expect("saved");
        for line in ["table ip nat", "chain ip nat CNI-DN-b", "chain ip nat OTHER", "rule ip nat OTHER counter"] {
            add(line);
        }
        restore_nat_tables(&base, || false);
        assert_eq!(chains("ip"), Some(vec!["OTHER".to_owned()]), "somebody uses the table");
        fs::remove_dir_all(&base).expect("removed");
    }

    #[test]
    fn only_chains_of_pods_without_rules_and_jumps_are_unused() {
        let chain = |name: &str| json!({"chain": {"family": "ip", "table": "nat", "name": name}});
        let rule = |of: &str, expr: Value| json!({"rule": {"chain": of, "expr": expr}});
        let listed = json!({"nftables": [
            {"metainfo": {"version": "1"}}, {"table": {"family": "ip", "name": "nat"}},
            chain("PREROUTING"), chain("CNI-DN-jumped"), chain("CNI-DN-filled"), chain("CNI-DN-empty"), chain("OTHER"),
            rule("PREROUTING", json!([{"counter": {}}, {"jump": {"target": "CNI-DN-jumped"}}])),
            rule("CNI-DN-filled", json!([{"return": null}])),
        ]});
        let table = NatTable::parse(&listed).expect("a table");
        assert_eq!(table.unused_pod_chains().collect::<Vec<_>>(), ["CNI-DN-empty"]);
        assert!(table.has_rules());
        assert!(!NatTable::parse(&json!({"nftables": [chain("OUTPUT")]})).expect("a table").has_rules());
    }
}
