// Package cli runs programs of several commands. One description of each command gives its parsing, its help, the manual page and the
// shells' completion, so that none can differ from another.
package cli

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
)

// A Program is a program of several commands. It is plain data.
type Program struct {
	Name    string
	Summary string // one line, without a full stop
	Text    string // what there is to know, in paragraphs
	// Commands in the order of the help. "help", "man" and "completion" are added.
	Commands []Command
}

// A Command is one command of a Program. It is plain data.
type Command struct {
	Name    string
	Args    string // such as "FILE" or "[NODE]", as in the usage
	Summary string // one line, without a full stop
	Text    string // more, in paragraphs; optional
	// Least and Most are how many arguments there may be besides flags. Most 0 with Least above it means as many as Least, and Most below 0
	// any number.
	Least, Most int
	// Complete says what an argument is, for the shells: "file", "" for nothing, or the words of a command of the program to ask for them,
	// such as "status -names".
	Complete string
	// Flags declares the flags, if there are any, and returns what runs the command once they are parsed.
	Flags func(f *flag.FlagSet) Run
}

// Run runs a command.
type Run func(ctx context.Context, std IO, args []string) error

// IO is where a command writes to.
type IO struct{ Out, Err io.Writer }

// A UsageError is the caller's mistake: status 2, and the usage is shown.
type UsageError struct{ Text string }

func (e *UsageError) Error() string { return e.Text }

// A Status ends the program with an exit status of its own, and with the text of Err unless that is nil.
type Status struct {
	Code int
	Err  error
}

func (e *Status) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("exit status %d", e.Code)
	}
	return e.Err.Error()
}

func (e *Status) Unwrap() error { return e.Err }

// Usage returns a UsageError.
func Usage(format string, args ...any) error { return &UsageError{fmt.Sprintf(format, args...)} }

// Main runs the program with the arguments of the process until it ends or is interrupted, and exits.
func (p *Program) Main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	status := p.Run(ctx, os.Args[1:], IO{os.Stdout, os.Stderr})
	stop()
	os.Exit(status)
}

// Run runs the command that args name: status 0 is success, 1 a failure, 2 wrong usage, or what a [Status] says.
func (p *Program) Run(ctx context.Context, args []string, std IO) (status int) {
	if len(args) == 0 {
		fmt.Fprint(std.Err, p.Help())
		return 2
	}
	name := strings.TrimLeft(args[0], "-")
	if name == "h" {
		name = "help"
	}
	c, ok := p.command(name)
	if !ok {
		fmt.Fprintf(std.Err, "%s: %q: want %s\n\n%s", p.Name, args[0], p.nearest(args[0]), p.Help())
		return 2
	}
	err := p.run(ctx, c, args[1:], std)
	var usage *UsageError
	var own *Status
	switch {
	case err == nil:
		return 0
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(std.Out, p.CommandHelp(c))
		return 0
	case errors.As(err, &usage):
		fmt.Fprintf(std.Err, "%s %s: %v\n\n%s", p.Name, c.Name, err, p.CommandHelp(c))
		return 2
	case errors.As(err, &own):
		if own.Err != nil {
			fmt.Fprintf(std.Err, "%v\n", own.Err)
		}
		return own.Code
	}
	fmt.Fprintf(std.Err, "%v\n", err)
	return 1
}

// run parses flags before, between and after the arguments.
func (p *Program) run(ctx context.Context, c Command, rest []string, std IO) error {
	f := flag.NewFlagSet(c.Name, flag.ContinueOnError)
	f.SetOutput(io.Discard)
	do := c.Flags(f)
	var args []string
	for {
		if err := f.Parse(rest); err != nil {
			if errors.Is(err, flag.ErrHelp) {
				return err
			}
			return &UsageError{err.Error()}
		}
		if rest = f.Args(); len(rest) == 0 {
			break
		}
		args, rest = append(args, rest[0]), rest[1:]
	}
	most := c.Most
	if most == 0 {
		most = c.Least
	}
	switch {
	case len(args) < c.Least:
		return Usage("want %s", c.Args)
	case most < 0:
	case len(args) > most && most == 0:
		return Usage("%q: want no arguments", args[0])
	case len(args) > most:
		return Usage("%q: want %s only", args[most], c.Args)
	}
	return do(ctx, std, args)
}

func (p *Program) command(name string) (Command, bool) {
	for _, c := range p.all() {
		if c.Name == name {
			return c, true
		}
	}
	return Command{}, false
}

// all are the program's own commands and those that every program has.
func (p *Program) all() []Command {
	return append(p.Commands[:len(p.Commands):len(p.Commands)],
		Command{
			Name: "help", Args: "[COMMAND]", Most: 1, Summary: "say what a command does", Complete: "help -names",
			Flags: func(f *flag.FlagSet) Run {
				names := f.Bool("names", false, "print the names of the commands only")
				return func(_ context.Context, std IO, args []string) error { return p.help(std, *names, args) }
			},
		},
		Command{
			Name: "man", Summary: "print the manual page", Text: "Install it with: " + p.Name + " man > /usr/local/share/man/man8/" + p.Name + ".8",
			Flags: func(*flag.FlagSet) Run {
				return func(_ context.Context, std IO, _ []string) error {
					_, err := io.WriteString(std.Out, p.Man())
					return err
				}
			},
		},
		Command{
			Name: "completion", Args: "bash|zsh|fish", Least: 1, Summary: "print the shell's completion of commands, flags and names",
			Text: "For bash: source <(" + p.Name + " completion bash)\nFor zsh: source <(" + p.Name + " completion zsh)\nFor fish: " + p.Name + " completion fish | source",
			Flags: func(*flag.FlagSet) Run {
				return func(_ context.Context, std IO, args []string) error { return p.completion(std.Out, args[0]) }
			},
		})
}

func (p *Program) help(std IO, names bool, args []string) error {
	if names {
		for _, c := range p.all() {
			fmt.Fprintln(std.Out, c.Name)
		}
		return nil
	}
	if len(args) == 0 {
		_, err := io.WriteString(std.Out, p.Help())
		return err
	}
	c, ok := p.command(args[0])
	if !ok {
		return Usage("%q: want %s", args[0], p.nearest(args[0]))
	}
	_, err := io.WriteString(std.Out, p.CommandHelp(c))
	return err
}

// nearest lists the commands, those that begin alike first.
func (p *Program) nearest(name string) string {
	var first, rest []string
	for _, c := range p.all() {
		if name != "" && c.Name[0] == name[0] {
			first = append(first, c.Name)
		} else {
			rest = append(rest, c.Name)
		}
	}
	all := slices.Concat(first, rest)
	return strings.Join(all[:len(all)-1], ", ") + " or " + all[len(all)-1]
}
