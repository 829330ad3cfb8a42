//! Completion of names, by the hidden command and by the scripts of the shells.

use std::process::Command;

use podwright_testbed::Cache;
use serde_json::json;

use crate::harness::Api;
use crate::pty::Pty;

fn started() -> Api {
    let api = Api::start();
    api.apply("default", "db");
    api.apply("team", "other");
    let containers = json!([{"name": "server", "image": "i"}, {"name": "helper", "image": "i"}]);
    api.publish("default", "web", &containers, &json!({"phase": "Running"}));
    api
}

#[test]
fn pods_and_containers_are_named() {
    let api = started();
    for (line, expected) in [
        ("logs _", "db\nweb-node\n"),
        ("delete -n team _", "other\n"),
        ("get pod/_", "pod/db\npod/web-node\n"),
        ("exec web -c _", "server\nhelper\n"),
        ("exec nothing -c _", ""),
        ("check _", ""),
        ("logs -n nowhere _", ""),
    ] {
        let arguments: Vec<&str> = line.split(' ').map(|argument| argument.trim_end_matches('_')).collect();
        let outcome = api.run_with("complete-names --", &arguments);
        assert_eq!((outcome.code, outcome.stdout.as_str(), outcome.stderr.as_str()), (0, expected, ""), "{line}");
    }
    api.end();
    let outcome = api.run_with("complete-names --", &["logs", ""]);
    assert_eq!((outcome.code, outcome.stdout.as_str(), outcome.stderr.as_str()), (0, "", ""));
}

#[test]
fn the_script_of_bash_completes_names() {
    let api = started();
    let script = api.write("completion.bash", &api.run("completion bash").stdout);
    let program = std::path::Path::new(env!("CARGO_BIN_EXE_podwright")).parent().expect("a directory").to_owned();
    let completed = |words: &[&str]| {
        let words: Vec<String> = words.iter().map(|word| format!("'{word}'")).collect();
        let cursor = words.len() - 1;
        let test = format!(
            ". {script}; COMP_WORDS=({}); COMP_CWORD={cursor}; _podwright_with_names podwright {} ''; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
            words.join(" "),
            words[cursor],
        );
        let mut bash = Command::new("bash");
        let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap_or_default());
        bash.args(["--norc", "-c", &test]).env("PATH", path).env("PODWRIGHT_RUN_DIR", api.run_dir());
        let output = bash.output().expect("bash runs");
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
    };
    let logs = completed(&["podwright", "logs", "w"]);
    assert!(logs.lines().any(|line| line == "web-node") && !logs.lines().any(|line| line == "db"), "{logs}");
    let containers = completed(&["podwright", "exec", "web-node", "-c", "se"]);
    assert!(containers.lines().any(|line| line == "server"), "{containers}");
}

/// A file with the script of a shell, and the `PATH` of the tested program.
fn script(api: &Api, shell: &str, name: &str) -> (String, String) {
    let file = api.write(name, &api.run(&format!("completion {shell}")).stdout);
    let program = std::path::Path::new(env!("CARGO_BIN_EXE_podwright")).parent().expect("a directory").to_owned();
    (file, format!("{}:{}", program.display(), std::env::var("PATH").unwrap_or_default()))
}

#[test]
fn the_script_of_fish_completes_names() {
    let api = started();
    let (file, path) = script(&api, "fish", "podwright.fish");
    let home = api.write("home/file-of-a-user.yaml", "");
    let home = std::path::Path::new(&home).parent().expect("a directory");
    let completed = |line: &str| {
        let mut fish = Command::new(Cache::find().debian("fish").expect("make debs"));
        fish.args(["--no-config", "-c", &format!("source {file}; complete -C '{line}'")]).current_dir(home);
        fish.env("PATH", &path).env("HOME", home).env("PODWRIGHT_RUN_DIR", api.run_dir());
        let output = fish.output().expect("fish runs");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let names = text.lines().filter_map(|line| line.split('\t').next()).map(str::to_owned).collect::<Vec<_>>();
        assert!(output.status.success(), "{line}: {output:?}");
        names
    };
    assert_eq!(completed("podwright logs w"), ["web-node"]);
    assert_eq!(completed("podwright exec web-node -c se"), ["server"]);
    assert!(completed("podwright des").contains(&"describe".to_owned()));
    // Names of files, where a file is meant.
    assert_eq!(completed("podwright check file"), ["file-of-a-user.yaml"]);
    assert_eq!(completed("podwright apply -f file"), ["file-of-a-user.yaml"]);
}

#[test]
fn the_script_of_zsh_completes_names_also_the_first_time() {
    let api = started();
    // As it is installed: the first completion loads the file.
    let (file, path) = script(&api, "zsh", "site-functions/_podwright");
    let own = std::path::Path::new(&file).parent().expect("a directory");
    let zsh = Cache::find().debian("zsh").expect("make debs");
    let root = zsh.parent().and_then(std::path::Path::parent).expect("the directory of packages").display().to_string();
    let setup = [
        format!("module_path=({root}/usr/lib/*/zsh/*(/))"),
        format!("fpath=({} {root}/usr/share/zsh/functions/**/*(/))", own.display()),
        "autoload -Uz compinit; compinit -u -D".to_owned(),
        "PS1='ready> '; unsetopt automenu; LISTMAX=1000".to_owned(),
    ];
    let mut command = Command::new(zsh);
    command.args(["-f", "-i"]).env("PATH", path).env("PODWRIGHT_RUN_DIR", api.run_dir()).current_dir(own);
    let mut shell = Pty::start(command);
    for line in setup {
        shell.press(&format!("{line}\r"));
    }
    shell.until("ready> ");
    shell.press("podwright logs w\t");
    shell.until("eb-node");
    shell.press("\x15podwright exec web-node -c se\t");
    shell.until("rver");
    shell.press("\x15podwright desc\t");
    shell.until("ribe");
    shell.press("\x15exit\r");
    shell.end();
}
