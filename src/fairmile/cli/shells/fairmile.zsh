# Completion of fairmile for zsh; `fairmile completion install` sets it up.
_fairmile() {
    local line files=
    local -a open open_shown full full_shown
    for line in "${(@f)$(${~words[1]} __complete zsh "${(@Q)words[2,CURRENT]}" 2>/dev/null)}"; do
        case $line in
            $'\tfile') files=file ;;
            $'\tfolder') files=folder ;;
            '') ;;
            *=$'\t'*) open+=("${line%%$'\t'*}"); open_shown+=("${line/$'\t'/  }") ;;
            *) full+=("${line%%$'\t'*}"); full_shown+=("${line/$'\t'/  }") ;;
        esac
    done
    (( $#open )) && compadd -S '' -l -d open_shown -a open
    (( $#full )) && compadd -l -d full_shown -a full
    [[ $files == file ]] && _files
    [[ $files == folder ]] && _files -/
    return 0
}
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit -i }
compdef _fairmile fairmile
