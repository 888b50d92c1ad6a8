# Completion of fairmile for fish; `fairmile completion install` sets it up.
function __fairmile_complete
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    set -l program $words[1]
    set -e words[1]
    for line in ($program __complete fish $words "$current" 2>/dev/null)
        switch $line
            case \tfile
                __fish_complete_path "$current"
            case \tfolder
                __fish_complete_directories "$current"
            case '*'
                echo $line
        end
    end
end
complete -c fairmile -f -a '(__fairmile_complete)'
