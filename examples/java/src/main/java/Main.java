import static java.util.concurrent.TimeUnit.DAYS;
import static java.util.concurrent.TimeUnit.MILLISECONDS;
import static java.util.concurrent.TimeUnit.SECONDS;

import dev.tollgate.v1.PeekRequest;
import dev.tollgate.v1.RateLimitServiceGrpc;
import dev.tollgate.v1.RateLimitServiceGrpc.RateLimitServiceBlockingStub;
import dev.tollgate.v1.ShouldAllowRequest;
import io.grpc.ManagedChannel;
import io.grpc.Status.Code;
import io.grpc.StatusRuntimeException;
import io.grpc.netty.shaded.io.grpc.netty.NettyChannelBuilder;
import jakarta.servlet.DispatcherType;
import jakarta.servlet.FilterChain;
import jakarta.servlet.ServletException;
import jakarta.servlet.http.HttpFilter;
import jakarta.servlet.http.HttpServlet;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.util.EnumSet;
import java.util.Objects;
import java.util.Set;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.Supplier;
import java.util.logging.Logger;
import org.eclipse.jetty.ee10.servlet.ServletContextHandler;
import org.eclipse.jetty.ee10.servlet.ServletHolder;
import org.eclipse.jetty.server.Server;

/** A servlet filter that asks tollgate about each request under /api/. README.md has the commands. */
public final class Main extends HttpFilter {
  private static final Logger LOG = Logger.getLogger("limit");
  private static final String DEFAULT_PLAN = "free";
  // Above tollgate's store.deadline (25 ms), so that the plan's policy answers when Redis fails.
  private static final long DEADLINE_MS = 50;
  // The start waits so long for tollgate: a request that has to connect first would miss its deadline.
  private static final long START_WAIT_S = 10;
  // No tollgate decided in time. Any other error means a wrong call, such as a misspelt plan, and must be seen.
  private static final Set<Code> UNDECIDED = EnumSet.of(Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED);

  private final AtomicLong failOpen = new AtomicLong(), loggedAt = new AtomicLong();
  private final ManagedChannel channel;
  private final RateLimitServiceBlockingStub tollgate;

  Main(String address) {
    channel = NettyChannelBuilder.forTarget(address).usePlaintext()
        .disableRetry() // ShouldAllow charges: what is sent again may be charged twice.
        .idleTimeout(365, DAYS) // The connection is kept while there are no requests.
        .keepAliveTime(10, SECONDS).keepAliveTimeout(2, SECONDS) // Finds a tollgate that is gone without a word.
        .build();
    tollgate = RateLimitServiceGrpc.newBlockingStub(channel);
    try {
      // Peek charges nothing. It also finds a default plan that is misspelt.
      var peek = PeekRequest.newBuilder().setKey("start").setPlan(DEFAULT_PLAN).build();
      tollgate.withWaitForReady().withDeadlineAfter(START_WAIT_S, SECONDS).peek(peek);
    } catch (StatusRuntimeException error) {
      if (!UNDECIDED.contains(error.getStatus().getCode())) throw error;
      LOG.warning("tollgate at " + address + " does not answer, starting without: " + error.getMessage());
    }
  }

  @Override
  protected void doFilter(HttpServletRequest request, HttpServletResponse response, FilterChain chain)
      throws IOException, ServletException {
    var plan = Objects.requireNonNullElse(request.getHeader("X-Plan"), DEFAULT_PLAN);
    // Who is counted. Check the API key before this: each one that is made up has a quota of its own.
    var apiKey = request.getHeader("X-Api-Key");
    var key = apiKey != null ? "api-key:" + apiKey : "address:" + request.getRemoteAddr();
    var question = ShouldAllowRequest.newBuilder().setKey(key).setPlan(plan).setHttpHeaders(true).build();
    try {
      var answer = tollgate.withDeadlineAfter(DEADLINE_MS, MILLISECONDS).shouldAllow(question);
      answer.getHttpHeadersMap().forEach(response::setHeader);
      if (!answer.getAllowed()) {
        text(response, 429, "too many requests\n");
        return;
      }
    } catch (StatusRuntimeException error) {
      if (!UNDECIDED.contains(error.getStatus().getCode())) {
        LOG.severe("rate limit of plan " + plan + ": " + error.getMessage());
        text(response, 503, "the rate limit could not be checked\n");
        return;
      }
      letThrough(error);
    }
    chain.doFilter(request, response);
  }

  /** Counts each request. Once a second at most, it writes to the log and tries to connect. */
  private void letThrough(StatusRuntimeException error) {
    long count = failOpen.incrementAndGet(), now = System.currentTimeMillis() / 1000;
    if (loggedAt.getAndSet(now) == now) return;
    LOG.warning("tollgate did not decide, request let through (" + count + " so far): " + error.getMessage());
    channel.resetConnectBackoff();
  }

  private static void text(HttpServletResponse response, int status, String text) throws IOException {
    response.setStatus(status);
    response.getWriter().write(text);
  }

  /** Answers each request with this text. */
  private static ServletHolder page(Supplier<String> text) {
    return new ServletHolder(new HttpServlet() {
      @Override
      protected void doGet(HttpServletRequest request, HttpServletResponse response) throws IOException {
        text(response, 200, text.get());
      }
    });
  }

  public static void main(String[] arguments) throws Exception {
    var environment = System.getenv();
    var filter = new Main(environment.getOrDefault("TOLLGATE_ADDRESS", "127.0.0.1:50051"));
    var context = new ServletContextHandler("/");
    context.addFilter(filter, "/api/*", EnumSet.of(DispatcherType.REQUEST));
    context.addServlet(page(() -> "hello\n"), "/api/hello");
    context.addServlet(page(() -> "# TYPE rate_limit_fail_open_total counter\nrate_limit_fail_open_total " + filter.failOpen + "\n"), "/metrics");
    var server = new Server(new InetSocketAddress("127.0.0.1", Integer.parseInt(environment.getOrDefault("PORT", "8000"))));
    server.setHandler(context);
    server.start();
    LOG.info("listening on http://127.0.0.1:" + server.getURI().getPort());
    server.join();
  }
}
