package tun

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Preflight checks that the kernel of the calling thread's network namespace forwards packets between other interfaces and a
// device with this Config, as a balancer for other hosts needs: without forwarding, or with strict reverse path
// filtering, it drops them silently. It returns every setting that is wrong, with the command that mends it. Open does not call it.
func Preflight(cfg *Config) error {
	c, err := cfg.complete(1)
	if err != nil {
		return err
	}
	var v4, v6 bool
	for _, p := range c.Routes {
		v4, v6 = v4 || p.Addr().Unmap().Is4(), v6 || p.Addr().Unmap().Is6()
	}
	var faults []error
	wrong := func(key, value, what string) {
		faults = append(faults, fmt.Errorf("tun: %s (%s); fix: sysctl -w %s=%s", what, key, key, value))
	}
	if v4 {
		if n, ok := sysctl("net.ipv4.ip_forward"); ok && n == 0 {
			wrong("net.ipv4.ip_forward", "1", "the kernel forwards no IPv4 packets, so none come to the device")
		}
		// Of "all" and the interface's own the higher one counts, and the device is made with the default.
		for _, which := range []string{"all", "default"} {
			key := "net.ipv4.conf." + which + ".rp_filter"
			other := map[string]string{"all": "default", "default": "all"}[which]
			n, _ := sysctl(key)
			if o, _ := sysctl("net.ipv4.conf." + other + ".rp_filter"); n == 1 && o < 2 {
				wrong(key, "0", "strict reverse path filtering drops what the device sends")
			}
		}
	}
	if n, ok := sysctl("net.ipv6.conf.all.forwarding"); v6 && ok && n == 0 {
		wrong("net.ipv6.conf.all.forwarding", "1", "the kernel forwards no IPv6 packets, so none come to the device")
	}
	return errors.Join(faults...)
}

func sysctl(key string) (n int, ok bool) {
	b, err := os.ReadFile("/proc/sys/" + strings.ReplaceAll(key, ".", "/"))
	if err != nil {
		return 0, false
	}
	n, err = strconv.Atoi(strings.TrimSpace(string(b)))
	return n, err == nil
}
