//! `podwright top`.

use serde_json::json;

use crate::harness::Api;

#[test]
fn top_shows_what_pods_containers_and_the_node_use() {
    let api = Api::start();
    for (namespace, name) in [("default", "web"), ("default", "database"), ("other", "cache")] {
        api.publish_static(namespace, name, &json!({"phase": "Running"}));
    }
    api.publish_static("default", "starting", &json!({"phase": "Pending"}));
    for (line, expected) in [
        (
            "top pod",
            "NAME            CPU(cores)   MEMORY(bytes)\n\
             database-node   251m         23Mi\n\
             web-node        251m         18Mi\n",
        ),
        ("top pods web --no-headers", "web-node   251m   18Mi\n"),
        (
            "top pod/web --containers --sort-by memory --no-headers",
            "web-node   c   250m   10Mi\nweb-node   d   1m     8Mi\n",
        ),
        ("top pod -l app=database --no-headers", "database-node   251m   23Mi\n"),
        (
            "top pod -A --sort-by memory --sum",
            "NAMESPACE   NAME            CPU(cores)   MEMORY(bytes)\n\
             default     database-node   251m         23Mi\n\
             other       cache-node      251m         20Mi\n\
             default     web-node        251m         18Mi\n            SUM             751m         61Mi\n",
        ),
        (
            "top node",
            "NAME   CPU(cores)   CPU(%)   MEMORY(bytes)   MEMORY(%)\nnode   500m         25%      1024Mi          25%\n",
        ),
        ("top node node --no-headers", "node   500m         25%      1024Mi          25%\n"),
    ] {
        let outcome = api.run(line);
        let stdout = outcome.stdout.lines().map(str::trim_end).fold(String::new(), |all, line| all + line + "\n");
        let spaces = |text: &str| text.split(' ').filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ");
        assert_eq!((outcome.code, spaces(&stdout)), (0, spaces(expected)), "{line}: {outcome:?}");
    }
    let outcome = api.run("top pod starting");
    assert!(outcome.code == 1 && outcome.stderr.contains("no container of it runs"), "{outcome:?}");
    let outcome = api.run("top pod -n nowhere");
    assert_eq!((outcome.code, outcome.stderr.as_str()), (0, "No running pods found in nowhere namespace.\n"));
    let outcome = api.run("top pod web -A");
    assert!(outcome.code == 2 && outcome.stderr.contains("use -n NAMESPACE"), "{outcome:?}");
}
