package cli

import (
	"flag"
	"fmt"
	"strings"
)

// Help is the help of the program.
func (p *Program) Help() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s.\n\nUsage:\n", p.Name, p.Summary)
	width := 0
	for _, c := range p.all() {
		width = max(width, len(c.line()))
	}
	for _, c := range p.all() {
		fmt.Fprintf(&b, "  %s %-*s  %s\n", p.Name, width, c.line(), c.Summary)
	}
	fmt.Fprintf(&b, "\n%s\n\n%s help COMMAND says more about a command.\n", strings.TrimSpace(p.Text), p.Name)
	return b.String()
}

func (c Command) line() string { return strings.TrimSpace(c.Name + " " + c.Args) }

// CommandHelp is the help of one command.
func (p *Program) CommandHelp(c Command) string {
	var b strings.Builder
	fs := c.flags()
	options := ""
	if len(fs) > 0 {
		options = " [OPTIONS]"
	}
	fmt.Fprintf(&b, "Usage: %s %s%s %s\n\n%s.\n", p.Name, c.Name, options, c.Args, upper(c.Summary))
	if c.Text != "" {
		fmt.Fprintf(&b, "\n%s\n", strings.TrimSpace(c.Text))
	}
	if len(fs) > 0 {
		b.WriteString("\nOptions:\n")
	}
	for _, f := range fs {
		fmt.Fprintf(&b, "  -%s\n        %s\n", f.head(), f.text())
	}
	return strings.ReplaceAll(b.String(), " \n", "\n")
}

func upper(s string) string {
	if s == "" {
		return s
	}
	return strings.ToUpper(s[:1]) + s[1:]
}

// option is a flag as people read it.
type option struct{ name, value, usage, def string }

func (c Command) flags() (all []option) {
	f := flag.NewFlagSet(c.Name, flag.ContinueOnError)
	c.Flags(f)
	f.VisitAll(func(x *flag.Flag) {
		value, usage := flag.UnquoteUsage(x)
		def := x.DefValue
		if def == "0" || def == "0s" || def == "false" {
			def = ""
		}
		all = append(all, option{x.Name, strings.ToUpper(value), usage, def})
	})
	return all
}

func (o option) head() string { return strings.TrimSpace(o.name + " " + o.value) }

func (o option) text() string {
	if o.def == "" {
		return upper(o.usage) + "."
	}
	return upper(o.usage) + ". Default " + o.def + "."
}

// Man is the manual page, in the macros of man(7).
func (p *Program) Man() string {
	var b strings.Builder
	fmt.Fprintf(&b, ".TH %s 8\n.SH NAME\n%s \\- %s\n.SH SYNOPSIS\n", strings.ToUpper(p.Name), p.Name, roff(p.Summary))
	for i, c := range p.all() {
		if i > 0 {
			b.WriteString(".br\n")
		}
		fmt.Fprintf(&b, ".B %s %s\n", p.Name, roff(c.Name))
		if c.Args != "" {
			fmt.Fprintf(&b, ".I %s\n", roff(c.Args))
		}
	}
	b.WriteString(".SH DESCRIPTION\n")
	paragraphs(&b, p.Text)
	b.WriteString(".SH COMMANDS\n")
	for _, c := range p.all() {
		fmt.Fprintf(&b, ".SS %s\n%s.\n", roff(strings.TrimSpace(c.Name+" "+c.Args)), roff(upper(c.Summary)))
		if c.Text != "" {
			b.WriteString(".PP\n")
			paragraphs(&b, c.Text)
		}
		for _, f := range c.flags() {
			fmt.Fprintf(&b, ".TP\n.B \\-%s\n%s\n", roff(f.head()), roff(f.text()))
		}
	}
	b.WriteString(".SH EXIT STATUS\n0 is success, 1 a failure, 2 wrong usage.\n")
	return b.String()
}

// paragraphs writes text: indented lines stand as they are.
func paragraphs(b *strings.Builder, text string) {
	literal := false
	for line := range strings.SplitSeq(strings.TrimSpace(text), "\n") {
		if indented := strings.HasPrefix(line, "  "); indented != literal {
			literal = indented
			b.WriteString(map[bool]string{true: ".PP\n.nf\n", false: ".fi\n"}[literal])
		}
		if line == "" {
			line = ".PP"
		} else {
			line = roff(line)
		}
		b.WriteString(line + "\n")
	}
	if literal {
		b.WriteString(".fi\n")
	}
}

// roff keeps a text from being taken for requests (groff_man(7)).
func roff(s string) string {
	s = strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(s)
	if strings.HasPrefix(s, ".") || strings.HasPrefix(s, "'") {
		s = `\&` + s
	}
	return s
}
