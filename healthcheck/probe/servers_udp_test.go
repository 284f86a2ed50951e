//go:build linux

package probe_test

import (
	"net/netip"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/healthcheck/probe"
	"github.com/lbprim/lbprim/internal/testenv"
)

func TestServerDNS(t *testing.T) {
	t.Parallel()
	bin := testenv.NeedServers(t, "named")[0]
	needRoot(t)
	dir, addr := openDir(t), testenv.FreePort(t)
	write(t, dir, "zone", "$TTL 60\n@ SOA ns m 1 60 60 60 60\n@ NS ns\nns A 192.0.2.1\nwww A 192.0.2.7\nwww AAAA 2001:db8::7\n"+
		"big TXT \"%0200d\" \"%0200d\" \"%0200d\"\n", 1, 2, 3)
	write(t, dir, "broken", "this is no zone\n")
	conf := write(t, dir, "named.conf", `
options {
	directory "%s";
	pid-file none;
	session-keyfile none;
	managed-keys-directory "%s";
	listen-on port %d { 127.0.0.1; };
	listen-on-v6 { none; };
	recursion no;
	dnssec-validation no;
	rate-limit { responses-per-second 0; };
};
controls { };
zone "example.com" { type primary; file "%s/zone"; };
zone "broken.example" { type primary; file "%s/broken"; };
`, dir, dir, addr.Port(), dir, dir)
	s := launch(t, exec.Command(bin, "-g", "-c", conf, "-n", "1", "-4"))
	both := probe.DNS{Name: "www.example.com", Zone: "example.com."}
	s.until(t, both, addr)
	passes(t, probe.DNS{}, addr)
	passes(t, probe.DNS{Name: "www.example.com", TCP: true, Zone: "example.com"}, addr)
	passes(t, probe.DNS{Name: "www.example.com.", Expect: []netip.Addr{netip.MustParseAddr("192.0.2.7")}}, addr)
	passes(t, probe.DNS{Name: "www.example.com", IPv6: true, Expect: []netip.Addr{netip.MustParseAddr("2001:db8::7")}}, addr)
	passes(t, probe.DNS{Name: "no.example.com", Life: true}, addr)
	fails(t, probe.DNS{Name: "www.example.com", Expect: []netip.Addr{netip.MustParseAddr("192.0.2.8")}}, addr, "want one of [192.0.2.8]")
	fails(t, probe.DNS{Name: "no.example.com"}, addr, "NXDOMAIN")
	fails(t, probe.DNS{Name: "www.example.org"}, addr, "REFUSED")
	fails(t, probe.DNS{Zone: "broken.example"}, addr, "SERVFAIL")
	fails(t, probe.DNS{Name: "www.example.com", Zone: "www.example.com"}, addr, `dns: zone www.example.com: got "no SOA record"`)
	s.lifecycle(t, udpProber{both}, addr)
}

func TestServerRADIUS(t *testing.T) {
	t.Parallel()
	bin := testenv.NeedServers(t, "freeradius")[0]
	needRoot(t)
	dir, addr := openDir(t), testenv.FreePort(t)
	write(t, dir, "users", "alice Cleartext-Password := \"secret\"\n")
	write(t, dir, "radiusd.conf", `
prefix = /usr
raddbdir = %[1]s
libdir = /usr/lib/freeradius
logdir = %[1]s
run_dir = %[1]s
pidfile = %[1]s/pid
security {
	max_attributes = 200
	reject_delay = 0
	status_server = yes
}
client localhost {
	ipaddr = 127.0.0.1
	secret = testing123
	require_message_authenticator = yes
}
modules {
	pap {
	}
	files {
		usersfile = %[1]s/users
	}
}
server default {
	listen {
		type = auth
		ipaddr = 127.0.0.1
		port = %[2]d
	}
	authorize {
		files
		pap
	}
	authenticate {
		Auth-Type PAP {
			pap
		}
	}
}
`, dir, addr.Port())
	require.NoError(t, os.Chmod(dir, 0o755)) // it refuses a folder that others may write to
	s := launch(t, exec.Command(bin, "-f", "-l", "stdout", "-d", dir))
	alice := probe.RADIUS{Key: key, User: "alice", Password: "secret", RejectFails: true}
	s.until(t, alice, addr)
	require.Contains(t, passes(t, probe.RADIUS{Key: key}, addr).Note, "reject counts as alive")
	passes(t, probe.RADIUS{Key: key, StatusServer: true}, addr)
	fails(t, probe.RADIUS{Key: key, RejectFails: true}, addr, `got "Access-Reject", want Access-Accept`)
	res := probeAt(probe.RADIUS{Key: "other"}, addr, short) // the server does not answer strangers
	require.ErrorContains(t, res.Err, "timed out")
	s.lifecycle(t, udpProber{alice}, addr)
}

func TestServerTFTP(t *testing.T) {
	t.Parallel()
	bin := testenv.NeedServers(t, "in.tftpd")[0]
	needRoot(t)
	dir, addr := openDir(t), testenv.FreePort(t)
	write(t, dir, "boot.img", "%01000d", 7)
	s := launch(t, exec.Command(bin, "-L", "-4", "-a", addr.String(), "-s", dir))
	boot := probe.TFTP{File: "boot.img"}
	s.until(t, boot, addr)
	require.Empty(t, passes(t, boot, addr).Note)
	require.Contains(t, passes(t, probe.TFTP{File: "none"}, addr).Note, "error 1 (File not found)")
	require.ErrorContains(t, probeAt(probe.DNS{Retries: -1}, addr, short).Err, "timed out")
	s.lifecycle(t, udpProber{boot}, addr)
}
