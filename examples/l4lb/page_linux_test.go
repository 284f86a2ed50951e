package main

import (
	"context"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const pageToken = "a-token-for-the-page-0123"

// TestPage works with the status page as an operator does, while clients use the balancer.
func TestPage(t *testing.T) {
	h := newHosts(t)
	require.NoError(t, h.balancer.Router())
	b := newBrowser(t, h.balancer)
	dir := t.TempDir()
	cert, key, token := filepath.Join(dir, "c.pem"), filepath.Join(dir, "k.pem"), filepath.Join(dir, "token")
	selfSigned(t, cert, key)
	require.NoError(t, os.WriteFile(token, []byte(pageToken+"\n"), 0o600))
	tcp := fmt.Sprintf("{socket: SOCKET, listen: '127.0.0.1:9443', certificate: %s, key: %s, token-file: %s}", cert, key, token)
	// One session of many is pressure here.
	p := h.start(t, strings.NewReplacer("{socket: none}", tcp, "    check:", "    pressure: {sessions: {high: 0.000001}}\n    check:", `8080"}`, `8080", max-sessions: 1000000}`).Replace(fmt.Sprintf(labFile, "tun", "e1, e2")))
	p.ready()
	requests := h.traffic(t, "10.9.100.1")

	const base = "https://127.0.0.1:9443/"
	b.goTo(base)
	b.until("a token is asked for", "!document.querySelector('#login').hidden && document.querySelector('#main').hidden")
	b.enter("#token", "a-wrong-token-000000")
	b.until("a wrong token is refused", "document.querySelector('#state').textContent === 'The token is wrong.'")
	b.enter("#token", pageToken)
	b.until("ready", "document.querySelector('#state').textContent === 'ready'")
	b.until("the service serves", "[...document.querySelectorAll('#services tbody tr')].some((r) => r.innerText.includes('web4') && r.innerText.includes('2 of 2'))")
	b.until("new sessions are counted", "document.querySelector('#services tbody tr').cells[4].innerText !== '0'")
	b.until("the chart moves", "/now \\d/.test(document.querySelector('#c-sessions').getAttribute('aria-label')) && !/now 0\\/s/.test(document.querySelector('#c-sessions').getAttribute('aria-label')) && document.querySelector('#c-sessions .l1').getAttribute('d').includes('L')")
	b.until("shares are shown", "/got (4\\d|5\\d|60) %/.test(document.querySelector('.share').getAttribute('aria-label'))")

	// From the beginning of the page the keyboard meets everything in order, and skips to the content.
	b.goTo(base)
	b.until("ready", "document.querySelector('#state').textContent === 'ready'")
	b.tabs()
	b.goTo("about:blank")
	b.goTo(base)
	b.until("ready", "document.querySelector('#state').textContent === 'ready'")
	b.key("Tab", "")
	require.Equal(t, "skip", b.eval("document.activeElement.className"))
	b.key("Enter", "\r")
	b.until("the content has the focus", "document.activeElement === document.querySelector('#main')")

	// By the keyboard alone: drain a node, see traffic move, disable it, enable it again.
	card := `[...document.querySelectorAll('.node')].find((n) => n.innerText.startsWith('s1'))`
	button := func(what string) {
		b.tabTo(fmt.Sprintf("e.getAttribute('aria-label') === '%s node s1 of farm v4'", what))
		b.key("Enter", "\r")
	}
	b.until("pressure is shown", card+".querySelector('.badge').textContent === 'up, pressure high' && "+card+".innerText.includes('high pressure halves its weight')")
	button("Drain")
	b.until("the node drains", card+".querySelector('.badge').textContent === 'draining' && "+card+".innerText.includes('asked over the admin interface')")
	b.until("it is announced", "document.querySelector('#live').textContent.startsWith('Drain v4/s1: draining')")
	b.until("the focus stays in the card", card+".contains(document.activeElement)")
	require.True(t, p.status().Farms[0].Nodes[0].Asked)
	for range 6 {
		body, err := h.get("10.9.100.1")
		require.NoError(t, err)
		require.Equal(t, "server 2", body)
	}
	require.Empty(t, b.asked)
	button("Disable")
	b.until("the node is disabled", card+".querySelector('.badge').textContent === 'disabled'")
	require.Equal(t, []string{"Disable v4/s1? Its sessions end."}, b.asked)
	b.until("it is announced", "document.querySelector('#live').textContent.startsWith('Disable v4/s1: disabled')")
	require.EqualValues(t, "disabled", p.status().Farms[0].Nodes[0].State.String())
	b.until("the focus stays in the card", card+".contains(document.activeElement)")
	button("Enable")
	b.until("the node takes part", card+".querySelector('.badge').textContent.startsWith('up')")

	// Drops by reason, with their rate.
	stray, err := h.client.DialContext(t.Context(), "udp", "10.9.100.1:81")
	require.NoError(t, err)
	defer stray.Close()
	for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		_, _ = stray.Write([]byte("x"))
		if b.eval("[...document.querySelectorAll('#drops tbody tr')].some((r) => r.cells[0].innerText === 'no-policy' && r.cells[1].innerText !== '0' && r.cells[2].innerText !== '0')") == true {
			break
		}
		require.True(t, time.Now().Before(end), "%v", b.eval("document.querySelector('#drops').innerText"))
	}

	b.eval("document.querySelector('#explain [name=src]').value = '10.9.0.2:40000'")
	b.enter("#explain [name=dst]", "10.9.100.1:80")
	b.until("explained", "document.querySelector('#explain .verdict').textContent.startsWith('forwarded to v4/s') && document.querySelector('#explain pre').textContent.includes('web4')")
	b.enter("#explain [name=dst]", "10.9.100.1:81")
	b.until("explained", "document.querySelector('#explain .verdict').textContent === 'dropped: no-policy'")
	b.enter("#sessions [name=client]", "10.9.0.0/24")
	b.until("sessions are listed", "document.querySelectorAll('#sessions tbody tr').length > 0 && document.querySelector('#sessions tbody').innerText.includes('10.9.100.1:80')")
	b.enter("#sessions [name=client]", "nonsense")
	b.until("a wrong filter is explained", "document.querySelector('#sessions [role=status]').textContent.includes('want an address')")

	// Packets as they pass: started, looked into, stopped.
	b.enter("#trace [name=client]", "nonsense")
	b.until("a wrong filter is explained", "document.querySelector('#trace [role=status]').textContent.includes('want an address')")
	b.enter("#trace [name=client]", "10.9.0.0/24")
	b.until("packets are listed", "document.querySelectorAll('#trace li').length > 3 && document.querySelector('#trace summary').textContent.includes('web4')")
	// One that is opened stays, however many come.
	b.eval("window.read = document.querySelector('#trace details'); read.querySelector('summary').click()")
	b.until("one is explained", "read.open && read.querySelector('pre').textContent.includes('web4')")
	b.until("many come after it", "[...document.querySelectorAll('#trace details')].indexOf(read) >= 50")
	require.Equal(t, true, b.eval("read.isConnected && read.checkVisibility()"))
	b.eval("read.querySelector('summary').click()")
	b.until("no more than fit", "document.querySelectorAll('#trace li').length <= 50")
	b.eval("document.querySelector('#trace .stop').click()")
	b.until("it stops", "document.querySelector('#trace [role=status]').textContent.startsWith('stopped after') && document.querySelector('#trace .stop').hidden")

	b.check(t)
	require.Empty(t, b.complaints(base))
	require.Positive(t, requests())

	// A balancer that goes away is said to have, and seen when it is back.
	p.stop()
	b.until("no answer", "document.querySelector('#state').textContent === 'no answer'")
	p.run()
	b.until("ready again", "document.querySelector('#state').textContent === 'ready'")
}

// check looks at the page as people with other eyes, devices and tools do.
func (b *browser) check(t *testing.T) {
	t.Helper()
	require.Empty(t, b.unnamed(), "elements a screen reader has no name for")
	require.Equal(t, "en", b.eval("document.documentElement.lang"))
	require.EqualValues(t, 1, b.eval("document.querySelectorAll('h1').length"))
	require.EqualValues(t, 0, b.eval("[...document.querySelectorAll('[tabindex]')].filter((e) => e.tabIndex > 0).length"), "an order of its own")
	for _, size := range [][2]int{{360, 740}, {1280, 800}} {
		for _, scheme := range []string{"light", "dark"} {
			b.call("Emulation.setDeviceMetricsOverride", map[string]any{"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": size[0] < 500})
			b.call("Emulation.setEmulatedMedia", map[string]any{"features": []map[string]any{{"name": "prefers-color-scheme", "value": scheme}}})
			worst := b.eval(contrast).([]any)
			require.GreaterOrEqual(t, worst[0], 4.5, "%s: %v", scheme, worst[1])
			require.LessOrEqual(t, b.eval("document.documentElement.scrollWidth"), float64(size[0]), "the page is wider than the screen")
			require.EqualValues(t, 0, b.eval("[...document.querySelectorAll('button')].filter((e) => e.checkVisibility() && e.getBoundingClientRect().height < 40).length"), "buttons too small for a finger")
			if dir := os.Getenv("L4LB_SCREENSHOTS"); dir != "" {
				shot := b.call("Page.captureScreenshot", map[string]any{"captureBeyondViewport": true})
				raw, err := base64.StdEncoding.DecodeString(shot["data"].(string))
				require.NoError(t, err)
				require.NoError(t, os.WriteFile(fmt.Sprintf("%s/%d-%s.png", dir, size[0], scheme), raw, 0o600))
			}
		}
	}
}

// traffic asks again and again until the test ends, and tells how often it was answered.
func (h *labHosts) traffic(t *testing.T, addr string) (answered func() int64) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	var n atomic.Int64
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			if _, err := h.get(addr); err == nil {
				n.Add(1)
			}
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	return n.Load
}
