package cli

import (
	"fmt"
	"io"
	"strings"
)

func (p *Program) completion(w io.Writer, shell string) error {
	var text string
	switch shell {
	case "bash":
		text = p.bash()
	case "zsh":
		// zsh runs completions written for bash.
		text = "autoload -Uz +X compinit && compinit -u\nautoload -Uz +X bashcompinit && bashcompinit\n" + p.bash()
	case "fish":
		text = p.fish()
	default:
		return Usage("%q: want bash, zsh or fish", shell)
	}
	_, err := io.WriteString(w, text)
	return err
}

func (p *Program) bash() string {
	var names []string
	var cases strings.Builder
	for _, c := range p.all() {
		names = append(names, c.Name)
		var flags []string
		for _, f := range c.flags() {
			flags = append(flags, "-"+f.name)
		}
		fmt.Fprintf(&cases, "    %s)\n      if [[ $cur == -* ]]; then words=%q\n", c.Name, strings.Join(flags, " "))
		switch {
		case c.Complete == "file":
			cases.WriteString("      else COMPREPLY=($(compgen -f -- \"$cur\")); return; fi ;;\n")
		case c.Complete != "":
			fmt.Fprintf(&cases, "      else words=$(%s %s 2>/dev/null); fi ;;\n", p.Name, c.Complete)
		case strings.Contains(c.Args, "|"):
			fmt.Fprintf(&cases, "      else words=%q; fi ;;\n", strings.ReplaceAll(c.Args, "|", " "))
		default:
			cases.WriteString("      fi ;;\n")
		}
	}
	return fmt.Sprintf(`_%[1]s() {
  local cur=${COMP_WORDS[COMP_CWORD]} words=
  COMPREPLY=()
  if [[ $COMP_CWORD == 1 ]]; then
    words=%[2]q
  else
    case ${COMP_WORDS[1]} in
%[3]s    esac
  fi
  COMPREPLY=($(compgen -W "$words" -- "$cur"))
}
complete -F _%[1]s %[1]s
`, p.Name, strings.Join(names, " "), cases.String())
}

func (p *Program) fish() string {
	var b strings.Builder
	fmt.Fprintf(&b, "complete -c %s -f\n", p.Name)
	for _, c := range p.all() {
		fmt.Fprintf(&b, "complete -c %s -n __fish_use_subcommand -a %s -d %q\n", p.Name, c.Name, c.Summary)
		on := fmt.Sprintf("complete -c %s -n '__fish_seen_subcommand_from %s'", p.Name, c.Name)
		for _, f := range c.flags() {
			takes := ""
			if f.value != "" {
				takes = " -r"
			}
			fmt.Fprintf(&b, "%s -o %s%s -d %q\n", on, f.name, takes, f.usage)
		}
		switch {
		case c.Complete == "file":
			fmt.Fprintf(&b, "%s -F\n", on)
		case c.Complete != "":
			fmt.Fprintf(&b, "%s -a '(%s %s 2>/dev/null)'\n", on, p.Name, c.Complete)
		case strings.Contains(c.Args, "|"):
			fmt.Fprintf(&b, "%s -a %q\n", on, strings.ReplaceAll(c.Args, "|", " "))
		}
	}
	return b.String()
}
