//! The completion scripts: those that are generated from the command line, and names of pods and containers.

use std::io::{self, Write};

use clap_complete::Shell;

/// Writes the script of a shell.
pub(super) fn write(shell: Shell, definition: &mut clap::Command, to: &mut dyn Write) -> io::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(shell, definition, "podwright", &mut script);
    to.write_all(&script)?;
    let names = match shell {
        Shell::Bash => BASH,
        Shell::Zsh => ZSH,
        Shell::Fish => FISH,
        _ => "",
    };
    to.write_all(names.as_bytes())
}

const BASH: &str = r#"
# Names of pods and containers, after the generated completion.
_podwright_with_names() {
    _podwright "$@"
    local names
    names="$(podwright complete-names -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)"
    if [[ -n "$names" ]]; then
        COMPREPLY+=($(compgen -W "$names" -- "${COMP_WORDS[COMP_CWORD]}"))
    fi
}
complete -F _podwright_with_names -o bashdefault -o default podwright
"#;

const ZSH: &str = r#"
# Names of pods and containers, besides the generated completion.
_podwright_names() {
    local -a names
    names=("${(@f)$(podwright complete-names -- "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    [[ -n "$names" ]] && compadd -a names
}
_podwright_with_names() {
    local found=1
    _podwright_names && found=0
    _podwright "$@" && found=0
    return found
}
compdef _podwright_with_names podwright
# The first completion has loaded this file as the function _podwright, which has added everything but the names.
[ "$funcstack[1]" = "_podwright" ] && _podwright_names
"#;

const FISH: &str = r#"
# Names of pods and containers. Files are completed where there are no names, as after `check`.
function __podwright_names
    podwright complete-names -- (commandline -opc)[2..-1] (commandline -ct) 2>/dev/null
end
function __podwright_has_names
    set -l names (__podwright_names)
    test -n "$names"
end
complete -c podwright -n __podwright_has_names -f -a '(__podwright_names)'
complete -c podwright -n __podwright_has_names -s c -l container -x -a '(__podwright_names)'
complete -c podwright -n __podwright_has_names -l for -x -a '(__podwright_names)'
"#;
