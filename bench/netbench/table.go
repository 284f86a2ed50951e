package main

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
)

// table holds every figure of every round.
type table struct {
	o          options
	values     map[[2]string][]float64 // by mode and measure
	cpu        map[[2]string][]float64 // seconds per unit of work
	skipped    map[string]string
	failed     map[[2]string]bool
	calculated map[[2]string]bool // not measured as they are
}

func newTable(o options) *table {
	return &table{o: o, values: map[[2]string][]float64{}, cpu: map[[2]string][]float64{}, skipped: map[string]string{}, failed: map[[2]string]bool{}, calculated: map[[2]string]bool{}}
}

func (t *table) skip(mode, why string) { t.skipped[mode] = why }

func (t *table) fail(mode string, m *measure) { t.failed[[2]string{mode, m.name}] = true }

func (t *table) add(mode string, m *measure, v, cpu float64) {
	k := [2]string{mode, m.name}
	t.values[k] = append(t.values[k], v)
	work := v * t.o.seconds.Seconds()
	switch m.perCPU {
	case "k":
		work /= 1000
	case "GB":
		work /= 8 // from gigabits
	}
	if m.perCPU != "" && cpu > 0 && work > 0 {
		t.cpu[k] = append(t.cpu[k], cpu/work)
	}
}

func median(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	v = slices.Sorted(slices.Values(v))
	if n := len(v); n%2 == 0 {
		return (v[n/2-1] + v[n/2]) / 2
	}
	return v[len(v)/2]
}

func (t *table) print(out io.Writer) error {
	w := tabwriter.NewWriter(out, 2, 8, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "median of %d\t", t.o.rounds)
	for _, name := range t.o.measures {
		fmt.Fprintf(w, "%s %s\t× %s\t", name, measureByName(name).unit, t.o.base)
	}
	fmt.Fprintln(w)
	for _, r := range t.o.rows() {
		mode := r.String()
		if t.skipped[mode] != "" {
			continue
		}
		fmt.Fprintf(w, "%s\t", mode)
		for _, name := range t.o.measures {
			v, base := median(t.values[[2]string{mode, name}]), median(t.values[[2]string{label(t.o.base, r.net), name}])
			format := "%.0f\t"
			if v < 100 {
				format = "%.2f\t"
			}
			if v == 0 {
				if t.failed[[2]string{mode, name}] {
					fmt.Fprint(w, "failed\t\t")
				} else {
					fmt.Fprint(w, "-\t\t")
				}
				continue
			}
			if t.calculated[[2]string{mode, name}] {
				format = "~" + format
			}
			fmt.Fprintf(w, format, v)
			if base == 0 {
				fmt.Fprint(w, "-\t")
			} else {
				fmt.Fprintf(w, "%.2f\t", v/base)
			}
		}
		fmt.Fprintln(w)
	}
	fmt.Fprint(w, "\nCPU of the balancer's process (the kernel's packet work is not all charged to it)\t")
	for _, name := range t.o.measures {
		if u := measureByName(name).perCPU; u != "" {
			fmt.Fprintf(w, "%s ms/%s\t", name, u)
		}
	}
	fmt.Fprintln(w)
	for _, r := range t.o.rows() {
		mode, any := r.String(), false
		for _, name := range t.o.measures {
			any = any || len(t.cpu[[2]string{mode, name}]) > 0
		}
		if !any {
			continue
		}
		fmt.Fprintf(w, "%s\t", mode)
		for _, name := range t.o.measures {
			if measureByName(name).perCPU != "" {
				fmt.Fprintf(w, "%.1f\t", 1000*median(t.cpu[[2]string{mode, name}]))
			}
		}
		fmt.Fprintln(w)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, r := range t.o.rows() {
		if why := t.skipped[r.String()]; why != "" {
			fmt.Fprintf(out, "%s was not measured: %s\n", r, why)
		}
	}
	return nil
}
