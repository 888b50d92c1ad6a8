# Completion of fairmile for bash; `fairmile completion install` sets it up.
_fairmile() {
    local line files= current=${COMP_WORDS[COMP_CWORD]}
    [[ $current == = || $current == : ]] && current=
    COMPREPLY=()
    while IFS= read -r line; do
        case $line in
            $'\tfile') files=-f ;;
            $'\tfolder') files=-d ;;
            *) COMPREPLY+=("$line") ;;
        esac
    done < <("${1/#\~/$HOME}" __complete bash "${COMP_LINE:0:COMP_POINT}" 2>/dev/null)
    if [[ -n $files ]]; then
        compopt -o filenames
        while IFS= read -r line; do COMPREPLY+=("$line"); done < <(compgen $files -- "$current")
    fi
    [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *= ]] && compopt -o nospace
    return 0
}
complete -F _fairmile fairmile
