#!/usr/bin/env bash
# Writes the manual page or a shell's completions from what `tokenfold help` says, so that they follow the flag table.
#   manual.sh PROGRAM man|bash|zsh|fish     to standard output
set -euo pipefail
export LC_ALL=C
program=$1 form=$2

# Lines of "verb|NAME|ARGUMENTS|HELP" and "flag|NAME|VALUE|HELP", a verb's flags behind it. Help is in columns.
table() {
    "$program" help | sed -n 's/^  tokenfold //p' | while IFS= read -r line; do
        name=${line%% *}
        printf '%s\n' "$line" | columns verb 20
        "$program" help "$name" | sed -n 's/^  --//p' | columns flag 30
    done
}

columns() { # kind, width of the left column
    awk -v kind="$1" -v width="$2" '{
        if (substr($0, width + 1, 1) != " ") {
            print "tools/manual.sh: this line of help does not fit its columns: " $0 >"/dev/stderr"
            exit 1
        }
        left = substr($0, 1, width)
        sub(/ +$/, "", left)
        name = left
        sub(/ .*/, "", name)
        sub(/^[^ ]+ ?/, "", left)
        # A bar parts the fields, so that the choices of a flag have to be parted by something else.
        gsub(/\|/, "~", left)
        help = substr($0, width + 2)
        print kind "|" name "|" left "|" help
    }'
}

man_page() {
    cat <<'END'
.TH TOKENFOLD 1 "" "tokenfold" "User commands"
.SH NAME
tokenfold \- serves Qwen 3.5, 3.6 and 3.8 language models
.SH SYNOPSIS
.B tokenfold
.I VERB
.RI [ FLAG ...]
.RI [ ARGUMENT ...]
.br
.B tokenfold help
.RI [ VERB ]
.SH DESCRIPTION
.B tokenfold
serves checkpoints of the Qwen 3.5, 3.6 and 3.8 families through an API that is compatible with OpenAI's, on NVIDIA GPUs
and on the CPU.
.I MODEL
is a folder with a checkpoint as Hugging Face or MLX publish it, or ORG/NAME or ORG/NAME@REVISION of one in Hugging
Face's cache, where
.B tokenfold pull
puts it. Without
.I MODEL
the small model that comes with the program is used. Defaults are in parentheses; sizes are numbers of bytes such as
8GiB or 500MB.
.SH VERBS
END
    table | awk -F'|' '
        function roff(s) { gsub(/\\/, "\\e", s); gsub(/-/, "\\-", s); sub(/^[.'"'"']/, "\\\\\\&&", s); return s }
        { gsub(/~/, "|", $3) }
        $1 == "verb" { print ".SS \"tokenfold " roff($2) ($3 != "" ? " " roff($3) : "") "\"\n" roff($4) }
        $1 == "flag" {
            flag = "\\-\\-" roff($2)
            print ".TP\n" ($3 != "" ? ".BI \"" flag " \" \"" roff($3) "\"" : ".B " flag) "\n" roff($4)
        }'
    cat <<'END'
.SH ENVIRONMENT
Settings of memory, which
.B tokenfold profiles
describes:
END
    "$program" profiles | sed -n 's/^| `\(TF_[A-Z_]*\)` | .* | \(.*\) |$/.TP\n.B \1\n\2/p'
    cat <<'END'
.TP
.BR HF_HOME ", " HF_HUB_CACHE
where Hugging Face's cache is
.TP
.BR HF_ENDPOINT ", " HF_TOKEN
the hub or mirror that
.B pull
asks, and what opens gated repositories there
.SH SIGNALS
On SIGTERM or SIGINT
.B serve
takes no new connections, lets what runs and waits finish for
.B \-\-drain\-seconds
and exits with 0. A second signal ends it at once, with 1.
.SH EXIT STATUS
0: done. 1: it failed. 2: it was asked for wrongly.
.SH SEE ALSO
The pages of the project's docs folder: api, operations, memory, profiles, cuda.
END
}

bash_completion() {
    echo "# Completions of tokenfold for bash."
    echo "_tokenfold() {"
    echo "    local word=\${COMP_WORDS[COMP_CWORD]} before=\${COMP_WORDS[COMP_CWORD - 1]} verb=\${COMP_WORDS[1]} flags="
    echo "    COMPREPLY=()"
    echo "    if [ \"\$COMP_CWORD\" -eq 1 ] || { [ \"\$COMP_CWORD\" -eq 2 ] && [ \"\$verb\" = help ]; }; then"
    table | awk -F'|' '$1 == "verb" { all = all " " $2 }
                       END { print "        COMPREPLY=($(compgen -W \"help" all "\" -- \"$word\"))" }'
    echo "        return"
    echo "    fi"
    table | awk -F'|' '
        $1 == "verb" { flags[verb = $2] = ""; order[++n] = verb }
        $1 == "flag" { flags[verb] = flags[verb] " --" $2
                       if ($3 ~ /^[a-z0-9]+(~[a-z0-9]+)+$/) { gsub(/~/, " ", $3); choices[$2] = $3 }
                       if ($3 != "" && !($2 in known)) { known[$2]; names[++m] = $2 } }
        END {
            print "    case $verb in"
            for (i = 1; i <= n; i++)
                if (flags[order[i]] != "") print "    " order[i] ") flags=\"" substr(flags[order[i]], 2) " --help\" ;;"
            print "    esac\n    case $before in"
            for (i = 1; i <= m; i++)
                if (names[i] in choices)
                    printf "    --%s)\n        COMPREPLY=($(compgen -W \"%s\" -- \"$word\"))\n        return ;;\n",
                        names[i], choices[names[i]]
            printf "    "
            first = 1
            for (i = 1; i <= m; i++)
                if (!(names[i] in choices)) { printf "%s--%s", first ? "" : " | ", names[i]; first = 0 }
            print ") COMPREPLY=($(compgen -f -- \"$word\")); return ;;\n    esac"
        }'
    cat <<'END'
    case $word in
    -*) COMPREPLY=($(compgen -W "$flags" -- "$word")) ;;
    *) COMPREPLY=($(compgen -d -- "$word")) ;;
    esac
}
complete -o filenames -F _tokenfold tokenfold
END
}

# Text between single quotes; zsh reads brackets and colons as its own.
zsh_completion() {
    printf '#compdef tokenfold\n# Completions of tokenfold for zsh.\nlocal -a verbs=(\n'
    table | awk -F'|' -v q="'" '$1 == "verb" { gsub(q, q "\\" q q, $4); gsub(/:/, "\\:", $4)
                                               print "    " q $2 ":" $4 q }'
    cat <<'END'
)
if (( CURRENT == 2 )) || { (( CURRENT == 3 )) && [[ $words[2] == help ]] }; then
    _describe verb verbs
    return
fi
local verb=$words[2]
shift words
(( CURRENT-- ))
case $verb in
END
    table | awk -F'|' -v q="'" '
        $1 == "verb" { if (open) print "        " q "*:argument:_files" q " ;;"; open = 0; verb = $2 }
        $1 == "flag" {
            if (!open) { print verb ")\n    _arguments \\"; open = 1 }
            help = $4
            gsub(q, q "\\" q q, help); gsub(/\[/, "\\[", help); gsub(/\]/, "\\]", help); gsub(/:/, "\\:", help)
            value = $3; action = "_files"
            if (value ~ /^[a-z0-9]+(~[a-z0-9]+)+$/) { action = "(" value ")"; gsub(/~/, " ", action) }
            gsub(/[:~]/, " ", value)
            print "        " q "*--" $2 "[" help "]" (value != "" ? ":" value ":" action : "") q " \\"
        }
        END { if (open) print "        " q "*:argument:_files" q " ;;" }'
    printf '*) _files ;;\nesac\n'
}

fish_completion() {
    echo "# Completions of tokenfold for fish."
    table | awk -F'|' -v q="'" '
        function quoted(s) { gsub(/\\/, "\\\\", s); gsub(q, "\\" q, s); return q s q }
        $1 == "verb" { verb = $2; print "complete -c tokenfold -n __fish_use_subcommand -f -a " verb " -d " quoted($4) }
        $1 == "flag" {
            line = "complete -c tokenfold -n " q "__fish_seen_subcommand_from " verb q " -l " $2
            value = $3
            if (value ~ /^[a-z0-9]+(~[a-z0-9]+)+$/) { gsub(/~/, " ", value); line = line " -x -a " q value q }
            else if (value != "") line = line " -r"
            print line " -d " quoted($4)
        }
        END { print "complete -c tokenfold -n __fish_use_subcommand -f -a help -d " q "the flags of a verb" q }'
}

case $form in
man) man_page ;;
bash) bash_completion ;;
zsh) zsh_completion ;;
fish) fish_completion ;;
*) echo "manual.sh: the form must be man, bash, zsh or fish, not $form" >&2 && exit 2 ;;
esac
