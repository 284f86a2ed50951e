// Package cli has what the example programs share on the command line: subcommands with a usage text, flags on both
// sides of arguments, exit statuses, and a watch over a file that is to be read again when it changes.
package cli

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

// A Program is a command line with subcommands.
type Program struct {
	Name  string
	Usage string
	// Commands by name. Each gets the arguments after its name.
	Commands []Command
}

// A Command is a subcommand.
type Command struct {
	Name string
	Run  func(ctx context.Context, args []string, out, errs io.Writer) error
}

// Usage is wrong usage: exit status 2.
type Usage struct{ Text string }

func (e *Usage) Error() string { return e.Text }

// Usagef returns a *[Usage].
func Usagef(format string, args ...any) error { return &Usage{fmt.Sprintf(format, args...)} }

// Status ends the program with an exit status and, if Err is not nil, its text.
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

// Main runs the program with the arguments of the process until it ends or is interrupted, and exits.
func (p *Program) Main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	status := p.Run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(status)
}

// Run returns the exit status: 0 is success, 1 a failure, 2 wrong usage, or what a *[Status] says.
func (p *Program) Run(ctx context.Context, args []string, out, errs io.Writer) int {
	if len(args) == 0 {
		fmt.Fprint(errs, p.Usage)
		return 2
	}
	switch args[0] {
	case "help", "-h", "-help", "--help":
		fmt.Fprint(out, p.Usage)
		return 0
	}
	names := make([]string, 0, len(p.Commands))
	err := errUnknown
	for _, c := range p.Commands {
		names = append(names, c.Name)
		if c.Name == args[0] {
			err = c.Run(ctx, args[1:], out, errs)
			break
		}
	}
	if err == errUnknown { //nolint:errorlint // it never leaves this function
		err = Usagef("%q: want one of %s", args[0], strings.Join(names, ", "))
	}
	var usage *Usage
	var status *Status
	switch {
	case err == nil:
		return 0
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(out, p.Usage)
		return 0
	case errors.As(err, &usage):
		fmt.Fprintf(errs, "%s: %v\n%s -h shows how it is used.\n", p.Name, err, p.Name)
		return 2
	case errors.As(err, &status):
		if status.Err != nil {
			fmt.Fprintf(errs, "%v\n", status.Err)
		}
		return status.Code
	}
	fmt.Fprintf(errs, "%v\n", err)
	return 1
}

var errUnknown = errors.New("unknown command")

// Flags returns an empty flag set that prints nothing by itself.
func Flags(name string) *flag.FlagSet {
	f := flag.NewFlagSet(name, flag.ContinueOnError)
	f.SetOutput(io.Discard)
	return f
}

// Args parses flags wherever they stand among args, and returns the rest: least to most of them, most < 0 for any
// number. what describes them in an error.
func Args(f *flag.FlagSet, args []string, least, most int, what string) ([]string, error) {
	var rest []string
	for {
		if err := f.Parse(args); err != nil {
			if errors.Is(err, flag.ErrHelp) {
				return nil, err
			}
			return nil, &Usage{f.Name() + ": " + err.Error()}
		}
		if f.NArg() == 0 {
			break
		}
		rest = append(rest, f.Arg(0))
		args = f.Args()[1:]
	}
	if len(rest) < least || most >= 0 && len(rest) > most {
		return nil, Usagef("%s: %d arguments: want %s", f.Name(), len(rest), what)
	}
	return rest, nil
}

// Watch calls do for each SIGHUP and whenever the file has changed, until ctx is done.
func Watch(ctx context.Context, file string, do func()) {
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(hup)
	last := stampOf(file)
	t := time.NewTicker(time.Second)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-hup:
		case <-t.C:
			// A file that is gone for a moment is being written.
			if s := stampOf(file); s == last || s == (stamp{}) {
				continue
			}
		}
		last = stampOf(file)
		do()
	}
}

type stamp struct {
	at   time.Time
	size int64
}

func stampOf(file string) stamp {
	st, err := os.Stat(file)
	if err != nil {
		return stamp{}
	}
	return stamp{st.ModTime(), st.Size()}
}

// FileError puts the file's name before every fault in it, as compilers do.
func FileError(name string, err error) error {
	if err == nil {
		return nil
	}
	return &fileError{name, err}
}

type fileError struct {
	name string
	err  error
}

func (e *fileError) Error() string {
	var faults interface{ Unwrap() []error }
	if !errors.As(e.err, &faults) {
		return e.name + ":" + e.err.Error()
	}
	var lines []string
	for _, f := range faults.Unwrap() {
		lines = append(lines, e.name+":"+f.Error())
	}
	return strings.Join(lines, "\n")
}

func (e *fileError) Unwrap() error { return e.err }
