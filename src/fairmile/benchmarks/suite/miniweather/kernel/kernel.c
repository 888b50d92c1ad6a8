/* The steps of the solver in C99, on the same arrays and with the same equations as solver.py.
 *
 * A state is [4][nz][nx]: density', density u, density w, (density theta)'. The caller brings `scratch`:
 * 4 (nz + 1)(nx + 1) doubles for the flow through faces and 4 nz nx for a stage of Runge and Kutta.
 */
#include <math.h>
#include <string.h>

#define VERSION 2

enum { DENSITY, U, W, THETA, VARIABLES };

static const double C0 = 27.5629410929725921, GAMMA = 1.40027894, GRAVITY = 9.8, BETA = 0.05;
static const double JET_SPEED = 50.0, JET_THETA = 298.0;

struct problem {
    int nx, nz;
    double dx, dz;
    const double *density, *density_theta;                              /* means of cells, [nz] */
    const double *face_density, *face_density_theta, *face_pressure;    /* [nz + 1] */
    const double *beyond;                                               /* [4], density behind walls; 1: as inside */
    const double *forcing;                                              /* [nz][nx], or null */
    const unsigned char *jet;                                           /* [nz], or null */
};

int fairmile_miniweather_version(void) { return VERSION; }

static double between(double a, double b, double c, double d) { return (7 * (b + c) - (a + d)) / 12; }

static double third(double a, double b, double c, double d) { return d - a + 3 * (b - c); }

static void flow_x(const struct problem *p, const double *state, double *flow, double dt)
{
    const int nx = p->nx, nz = p->nz;
    const size_t cells = (size_t)nz * nx, faces = (size_t)nz * (nx + 1);
    const double viscosity = BETA * p->dx / (16 * dt);
    for (int k = 0; k < nz; k++) {
        for (int i = 0; i <= nx; i++) {
            double value[VARIABLES], bend[VARIABLES], around[VARIABLES][4];
            for (int v = 0; v < VARIABLES; v++) {
                const double *row = state + v * cells + (size_t)k * nx;
                if (i >= 2 && i < nx - 1) {
                    memcpy(around[v], row + i - 2, sizeof around[v]);
                } else {
                    for (int s = 0; s < 4; s++)
                        around[v][s] = row[(i - 2 + s + nx) % nx];
                }
            }
            if (p->jet && p->jet[k] && i < 2) {
                for (int s = 0; s < 2 - i; s++) {
                    const double blown = around[DENSITY][s] + p->density[k];
                    around[U][s] = blown * JET_SPEED;
                    around[THETA][s] = blown * JET_THETA - p->density_theta[k];
                }
            }
            for (int v = 0; v < VARIABLES; v++) {
                const double *q = around[v];
                value[v] = between(q[0], q[1], q[2], q[3]);
                bend[v] = viscosity * third(q[0], q[1], q[2], q[3]);
            }
            const double density = value[DENSITY] + p->density[k];
            const double density_theta = value[THETA] + p->density_theta[k];
            const double u = value[U] / density;
            double *to = flow + (size_t)k * (nx + 1) + i;
            to[DENSITY * faces] = bend[DENSITY] + value[U];
            to[U * faces] = bend[U] + value[U] * u + C0 * pow(density_theta, GAMMA);
            to[W * faces] = bend[W] + value[W] * u;
            to[THETA * faces] = bend[THETA] + density_theta * u;
        }
    }
}

static int inside(int k, int nz) { return k < 0 ? 0 : k >= nz ? nz - 1 : k; }

static void flow_z(const struct problem *p, const double *state, double *flow, double dt)
{
    const int nx = p->nx, nz = p->nz;
    const size_t cells = (size_t)nz * nx, faces = (size_t)(nz + 1) * nx;
    const double viscosity = BETA * p->dz / (16 * dt);
    for (int k = 0; k <= nz; k++) {
        const int is_wall = k == 0 || k == nz;
        size_t rows[4];
        double open[4];  /* nothing moves up or down behind a wall */
        double along[4]; /* the wind along it goes on there, in thicker or thinner air */
        for (int s = 0; s < 4; s++) {
            const int at = k - 2 + s;
            rows[s] = (size_t)inside(at, nz) * nx;
            open[s] = at < 0 || at >= nz ? 0.0 : 1.0;
            along[s] = at < 0 ? p->beyond[2 + at] : at >= nz ? p->beyond[2 + at - nz] : 1.0;
        }
        for (int i = 0; i < nx; i++) {
            double value[VARIABLES], bend[VARIABLES];
            for (int v = 0; v < VARIABLES; v++) {
                const double *from = state + v * cells + i;
                double a = from[rows[0]], b = from[rows[1]], c = from[rows[2]], d = from[rows[3]];
                if (v == U || v == W) {
                    const double *part = v == U ? along : open;
                    a *= part[0];
                    b *= part[1];
                    c *= part[2];
                    d *= part[3];
                }
                value[v] = between(a, b, c, d);
                bend[v] = viscosity * third(a, b, c, d);
            }
            if (is_wall)
                value[W] = bend[DENSITY] = 0;
            const double density = value[DENSITY] + p->face_density[k];
            const double density_theta = value[THETA] + p->face_density_theta[k];
            const double w = value[W] / density;
            double *to = flow + (size_t)k * nx + i;
            to[DENSITY * faces] = bend[DENSITY] + value[W];
            to[U * faces] = bend[U] + value[U] * w;
            to[W * faces] = bend[W] + value[W] * w + C0 * pow(density_theta, GAMMA) - p->face_pressure[k];
            to[THETA * faces] = bend[THETA] + density_theta * w;
        }
    }
}

static void add_x(const struct problem *p, const double *state, const double *flow, double *to, double dt)
{
    const int nx = p->nx, nz = p->nz;
    for (int v = 0; v < VARIABLES; v++)
        for (int k = 0; k < nz; k++) {
            const double *f = flow + ((size_t)v * nz + k) * (nx + 1);
            const size_t row = ((size_t)v * nz + k) * nx;
            for (int i = 0; i < nx; i++)
                to[row + i] = state[row + i] + dt * ((f[i] - f[i + 1]) / p->dx);
        }
}

static void add_z(const struct problem *p, const double *state, const double *stage, const double *flow, double *to,
                  double dt)
{
    const int nx = p->nx, nz = p->nz;
    const size_t cells = (size_t)nz * nx;
    /* w first: it needs the density of the stage, which `to` may replace */
    static const int order[VARIABLES] = {W, DENSITY, U, THETA};
    for (int n = 0; n < VARIABLES; n++) {
        const int v = order[n];
        for (int k = 0; k < nz; k++) {
            const double *f = flow + ((size_t)v * (nz + 1) + k) * nx;
            const size_t row = ((size_t)v * nz + k) * nx, in = (size_t)k * nx;
            for (int i = 0; i < nx; i++) {
                double change = (f[i] - f[nx + i]) / p->dz;
                if (v == W) {
                    change -= stage[DENSITY * cells + in + i] * GRAVITY;
                    if (p->forcing)
                        change += p->forcing[in + i] * p->density[k];
                }
                to[row + i] = state[row + i] + dt * change;
            }
        }
    }
}

static void sweep(const struct problem *p, double *state, double *scratch, double dt, int is_z)
{
    double *stage = scratch, *flow = scratch + (size_t)VARIABLES * p->nz * p->nx;
    const double *from = state;
    for (int part = 3; part >= 1; part--) {
        const double part_dt = dt / part;
        double *to = part == 1 ? state : stage;
        if (is_z) {
            flow_z(p, from, flow, part_dt);
            add_z(p, state, from, flow, to, part_dt);
        } else {
            flow_x(p, from, flow, part_dt);
            add_x(p, state, flow, to, part_dt);
        }
        from = stage;
    }
}

void fairmile_miniweather_advance(int nx, int nz, double dx, double dz, double dt, int steps, int z_first,
                                  const double *density, const double *density_theta, const double *face_density,
                                  const double *face_density_theta, const double *face_pressure,
                                  const double *beyond, const double *forcing, const unsigned char *jet, double *state,
                                  double *scratch)
{
    const struct problem p = {nx,           nz,                 dx,            dz,     density, density_theta,
                              face_density, face_density_theta, face_pressure, beyond, forcing, jet};
    for (int n = 0; n < steps; n++) {
        sweep(&p, state, scratch, dt, z_first);
        sweep(&p, state, scratch, dt, !z_first);
        z_first = !z_first;
    }
}
